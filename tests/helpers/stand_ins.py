"""Small substitutes for data sets that are downloaded."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from dataclasses import replace

from PIL import Image

from advibp.data.fetch.catalogue import find
from advibp.data.fetch.known_sets import File, Row


def sum_of(body: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"


def tar_of(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, body in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


def zip_of(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as opened:
        for name, body in contents.items():
            opened.writestr(name, body)
    return out.getvalue()


def stand_in(name: str) -> tuple[Row, dict[str, bytes], dict[str, bytes]]:
    """A row with small files in the place of its own; those files by path; what its folder should hold then."""
    row = find(name)
    if name == "cifar10":
        inside = {file.name: os.urandom(3073) for file in row.files}
        more = {"batches.meta.txt": b"airplane\n", "readme.html": b"<html>"}
        remote = {row.remotes[0].name: tar_of({f"{row.folder}/{n}": b for n, b in {**inside, **more}.items()})}
    elif name == "gtsrb":
        train = {f"{c:05d}/{i:05d}_00000.ppm": ppm() for c in range(3) for i in range(4)}
        test = {f"{i:05d}.ppm": ppm() for i in range(5)}
        labels = b"Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"
        labels += b"".join(f"{i:05d}.ppm;4;4;0;0;3;3;{i % 3}\n".encode() for i in range(5))
        dropped = {f"GTSRB/Training/{c:05d}/GT-{c:05d}.csv": b"Filename;ClassId\n" for c in range(3)}
        remote = {
            "GTSRB-Training_fixed.zip": zip_of({f"GTSRB/Training/{n}": b for n, b in train.items()} | dropped),
            "GTSRB_Final_Test_Images.zip": zip_of(
                {f"GTSRB/Final_Test/Images/{n}": b for n, b in test.items()}
                | {"GTSRB/Final_Test/Images/GT-final_test.test.csv": b"Filename\n", "GTSRB/Readme.txt": b"read me"}
            ),
            "GTSRB_Final_Test_GT.zip": zip_of({"GT-final_test.csv": labels}),
        }
        inside = {f"train/{n}": b for n, b in train.items()} | {f"test/{n}": b for n, b in test.items()}
        inside["test/GT-final_test.csv"] = labels
    elif name == "cifar100":
        inside = {"train.bin": os.urandom(3074), "test.bin": os.urandom(3074)}
        more = {"fine_label_names.txt": b"apple\n", "coarse_label_names.txt": b"fish\n"}
        remote = {row.remotes[0].name: tar_of({f"{row.folder}/{n}": b for n, b in {**inside, **more}.items()})}
    elif name == "tinyimagenet":
        inside = tiny_imagenet()
        dropped = {"wnids.txt": b"n01\n", "test/images/test_0.JPEG": jpeg(), "train/n01/n01_boxes.txt": b"0 0 1 1\n"}
        remote = {row.remotes[0].name: zip_of({f"{row.folder}/{n}": b for n, b in {**inside, **dropped}.items()})}
    else:
        inside = remote = {file.name: gzip.compress(os.urandom(500)) for file in row.files}
    small = replace(
        row,
        remotes=tuple(replace(r, size=len(remote[r.name]), checksum=sum_of(remote[r.name])) for r in row.remotes),
        files=tuple(File(f.name, len(inside[f.name]), sum_of(inside[f.name], "sha1")) for f in row.files),
        fallback=None,
    )
    return small, {f"/{name}/{n}": body for n, body in remote.items()}, inside


def ppm() -> bytes:
    return b"P6 4 4 255\n" + os.urandom(48)


def jpeg(gray: int = 100) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (gray, gray, gray)).save(out, "JPEG", quality=95)
    return out.getvalue()


def tiny_imagenet() -> dict[str, bytes]:
    """Files of a small TinyImageNet, as its archive holds them: two classes, dark and bright."""
    train = {f"train/n{c:02d}/images/n{c:02d}_{i}.JPEG": jpeg(50 + 100 * c) for c in (1, 2) for i in range(4)}
    test = {f"val/images/val_{i}.JPEG": jpeg(250 if i % 2 else 150) for i in range(3)}
    lines = b"".join(f"val_{i}.JPEG\tn{1 + i % 2:02d}\t0\t0\t7\t7\n".encode() for i in range(3))
    return train | test | {"val/val_annotations.txt": lines}
