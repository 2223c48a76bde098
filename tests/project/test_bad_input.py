"""Bad input of many kinds, through the command line: exit code 2, one line, nothing changed, nothing run.

test_cli.py has the slips of everyday; here are files that are damaged or made to do harm. Whatever could run in them
writes a file `executed`, whatever could unpack does so to gigabytes.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import shlex
import shutil
import signal
import stat
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import call, halves
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from advibp.data.fetch import archives
from advibp.data.fetch.catalogue import find
from advibp.errors import UserError
from advibp.storage import checkpoint

torch.set_num_threads(1)

PATIENCE = 120  # seconds for any of these, and in this time
MEMORY = 400  # megabytes more than before

OPTIONS = "--epochs 3 --warmup-natural 1 --warmup-adversarial 0.5 --ramp 1 --eps 0.1 --lr 0.02 --batch-size 20"
OPTIONS += " --validation 30 --threads 1"


def train(data: str = "data.npz", net: str = "FC 8", more: str = "") -> str:
    return f"train {data} '{net}' {OPTIONS} --out new {more}"


class Evil:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("executed", "w")


EVIL = pickle.dumps(Evil(), protocol=2)

OWN = """
import torch
from torch import nn

class Flat(nn.Linear):
    after = staticmethod(lambda y: y)
    def forward(self, x):
        return self.after(super().forward(x.flatten(1)))

def shaped(after):
    net = Flat(16, 2)
    net.after = after
    return net

def single(): return shaped(lambda y: y[:, :1])
def cube(): return shaped(lambda y: y[:, :, None])
def scalar(): return shaped(lambda y: y.sum())
def unordered(): return shaped(lambda y: y.sort(1).values)
def branching(): return shaped(lambda y: y if bool((y > 0).all()) else -y)
def numpied(): return shaped(lambda y: torch.from_numpy(y.detach().numpy()))
def frozen(): return shaped(lambda y: y).requires_grad_(False)
def leaves(): raise SystemExit(0)
def deep(): return deep()
def evil():
    open("executed", "w")
    return shaped(lambda y: y)
"""


# Files


def deflated(head: bytes, zeros: int) -> bytes:
    """Return `head` and so many megabytes of zeros in raw deflate format, without allocating them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + zeros * block + packer.flush()


def npy_head(shape: tuple[int, ...]) -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return head.getvalue()


def zip_bomb(path: Path, parts: dict[str, np.ndarray]) -> None:
    """An .npz whose x_train unpacks from three megabytes to three gigabytes."""
    np.savez(path, **{k: v for k, v in parts.items() if k != "x_train"})
    head = npy_head((3 * 2**26, 4, 4))
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("x_train.npy")
        archive.writestr(info, deflated(head, 3 * 2**10))
        info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, len(head) + 3 * 2**30


def lying_npz(path: Path, parts: dict[str, np.ndarray]) -> None:
    """An .npz whose x_train declares a petabyte but has no data."""
    np.savez(path, **{k: v for k, v in parts.items() if k != "x_train"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x_train.npy", npy_head((2**46, 4, 4)))


def png_bomb(path: Path, side: int = 30_000) -> None:
    """A black picture of 900 million pixels in less than a megabyte."""
    raw = deflated(b"", (side + 1) * side // 2**20)
    chunks = [(b"IHDR", struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)), (b"IDAT", b"\x78\xda" + raw), (b"IEND", b"")]
    packed = [struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))


def safetensors(path: Path, header: dict[str, Any] | bytes, body: bytes = b"", length: int | None = None) -> None:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head) if length is None else length) + head + body)


def entry(shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


def weight_files(here: Path, own: dict[str, Tensor]) -> None:
    (here / "weights.pth").write_bytes(EVIL)
    (here / "pickle.safetensors").write_bytes(EVIL)
    for name in ("weights.pt", "zip.safetensors"):  # as torch.save packs them
        with zipfile.ZipFile(here / name, "w") as archive:
            archive.writestr("archive/data.pkl", EVIL)
    save_file(own, here / "good.safetensors")
    good = (here / "good.safetensors").read_bytes()
    (here / "torn.safetensors").write_bytes(good[:-7])
    (here / "empty.safetensors").write_bytes(b"")
    safetensors(here / "huge.safetensors", b"{}", length=2**62)
    safetensors(here / "garbage.safetensors", b"{" + bytes(range(200, 250)))
    first, second = entry([8, 16], 0, 512), entry([8], 480, 512)
    safetensors(here / "overlapping.safetensors", {"1.weight": first, "1.bias": second}, bytes(512))
    safetensors(here / "outside.safetensors", {"1.weight": entry([8, 16], 0, 2**40)}, bytes(512))
    save_file({**own, "1.weight": own["1.weight"] * torch.nan}, here / "nan.safetensors")
    save_file({**own, "1.weight": own["1.weight"].T.contiguous()}, here / "shapes.safetensors")
    save_file({**own, "1.weight": own["1.weight"].long()}, here / "integers.safetensors")
    save_file({k: v for k, v in own.items() if k != "1.bias"}, here / "missing.safetensors")
    save_file({**own, "5.extra": torch.zeros(1)}, here / "strange.safetensors")


def npz_files(here: Path, x: np.ndarray, y: np.ndarray) -> None:
    parts = {"x_train": x, "y_train": y, "x_test": x[:40], "y_test": y[:40]}
    np.savez(here / "data.npz", **parts)
    evil = np.empty(len(x), dtype=object)
    evil[:] = Evil()
    bad = {
        "objects": {"y_train": evil},
        "infinite": {"x_train": np.where(x == x.max(), np.inf, x / 255.0)},
        "large": {"x_train": x / 100.0},
        "complex": {"x_train": x * 1j},
        "flat": {"x_train": x.reshape(len(x), -1)},
        "empty": {"x_train": x[:0], "y_train": y[:0]},
        "negative": {"y_train": y - 1},
        "halved": {"y_train": y / 2},
        "far": {"y_train": y + 2**40},
        "one": {"y_train": 0 * y, "y_test": 0 * y[:40]},
    }
    for name, changed in bad.items():
        np.savez(here / f"{name}.npz", **{**parts, **changed})
    np.savez(here / "lacking.npz", x_train=x, y_train=y)
    (here / "pickle.npz").write_bytes(EVIL)
    for name in ("data.pt", "data.pth", "data.pkl"):
        (here / name).write_bytes(EVIL)
    (here / "single.npz").write_bytes(npy_head((0,)))
    zip_bomb(here / "bomb.npz", parts)
    lying_npz(here / "lying.npz", parts)


def original_files(here: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Damaged idx, CIFAR and SVHN files."""
    heads = {"swapped": (0x801, 0x803), "promising": (0x803, 0x801), "zipped": (0x803, 0x801)}
    for name, (images, labels) in heads.items():
        (here / name).mkdir()
        for part in ("train", "t10k"):
            count = 2**31 if name == "promising" else len(x)
            raw = struct.pack(">4I", images, count, *x.shape[1:]) + x.tobytes()
            ending = ".gz" if name == "zipped" else ""
            (here / name / f"{part}-images-idx3-ubyte{ending}").write_bytes(raw)
            raw = struct.pack(">2I", labels, len(y)) + y.astype(np.uint8).tobytes()
            (here / name / f"{part}-labels-idx1-ubyte").write_bytes(raw)
    for name in ("cifar-python", "cifar-short", "cifar-label"):
        (here / name).mkdir()
        for batch in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            if name == "cifar-python":
                (here / name / batch).write_bytes(EVIL)
                continue
            with (here / name / f"{batch}.bin").open("wb") as file:  # zeros that take no room on the disk
                file.truncate(30_730_000 - (name == "cifar-short"))
                file.seek(5 * 3073)
                file.write(bytes([77]))
    (here / "damaged-root" / find("cifar10").folder).mkdir(parents=True)
    (here / "damaged-root" / find("cifar10").folder / "data_batch_1.bin").write_bytes(EVIL)
    for name, raw in (("mat-text", b"not from MATLAB"), ("mat-torn", b"MATLAB 5.0".ljust(124) + b"\0\1IM" + b"\x0e")):
        (here / name).mkdir()
        for part in ("train", "test"):
            (here / name / f"{part}_32x32.mat").write_bytes(raw)


def picture_files(here: Path, x: np.ndarray) -> None:
    """Folders of images with one problem each, and images to predict."""

    def folder(name: str, table: str | None = None) -> Path:
        for i in range(40):
            where = here / name / "train" / ("left", "right")[i % 2]
            where.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[i]).save(where / f"{i}.png")
        if table is not None:
            (here / name / "train.csv").write_text("file,label\n" + table)
        return here / name / "train" / "left"

    png_bomb(folder("picture-bomb") / "0.png")
    (folder("picture-text") / "0.png").write_text("no picture")
    Image.fromarray(halves(1, 6)[0][0]).save(folder("picture-size") / "0.png")
    Image.fromarray(x[0].astype(np.uint16)).save(folder("picture-deep") / "0.png")
    shutil.rmtree(folder("picture-none"))
    (here / "picture-none" / "train" / "left").mkdir()
    folder("table-leaves", "../secret.png,1\n")
    folder("table-root", f"{here / 'first.png'},1\n")
    folder("table-lacks", "train/left/99.png,1\n")
    folder("table-torn", "train/left/0.png\n")
    folder("table-binary", "\0\0\n")
    (folder("table-linked", "train/left/link.png,1\n") / "link.png").symlink_to(here / "first.png")
    Image.fromarray(x[0]).save(here / "first.png")
    Image.fromarray(x[0]).save(here / "secret.png")
    png_bomb(here / "bomb.png")
    alpha = np.full_like(x[0], 255)
    Image.fromarray(np.stack([x[0], alpha], -1)).save(here / "opaque.png")
    Image.fromarray(np.stack([x[0], x[0], x[0], alpha - 1], -1)).save(here / "glass.png")
    Image.fromarray(x[0]).convert("P").save(here / "hole.png", transparency=int(x[0, 0, 0]))
    (here / "script.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n")
    (here / "gs").write_text("#!/bin/sh\necho > executed\n")  # whoever runs Ghostscript on a picture runs this
    (here / "gs").chmod(0o755)


def laughs(depth: int = 30) -> str:
    """YAML of a kilobyte that expands to deeply nested lists of nine lists each."""
    lines = ["l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"l{i}: &l{i} [{', '.join(9 * [f'*l{i - 1}'])}]" for i in range(1, depth)]
    return "\n".join(lines)


RECIPES = {
    "python": "lr: !!python/object/apply:builtins.open [executed, w]\n",
    "binary": "\0\1\2\xff\xfe",
    "laughs": laughs() + "\nlr: *l29\n",
    "laughing": f"published:\n  {{{laughs().replace(chr(10), ', ')}}}\n",
    "nested": "lr: " + 2000 * "[",
    "digits": "epochs: " + 5000 * "9",
    "date": "lr: 2021-99-99\n",
    "itself": "published: &p\n  again: *p\n",
    "unhashable": "? [lr]\n: 3\n",
    "number": "5\n",
    "nothing": "",
    "own": "data: data.npz\nnet: own.py:evil\nvalidation: 30\n",
    "types": "beta1: {fast: 1}\n",
}


EDITED = {
    "verdict": ('"verdict": "', '"verdict": "not '),
    "better": ('"index": 4', '"index": 400'),
}


def damaged_runs(here: Path) -> None:
    """Copies of a finished run, each with one problem."""

    def copy(name: str) -> Path:
        shutil.copytree(here / "run", here / name)
        return here / name

    for path in checkpoint.newest(copy("flipped") / "checkpoints"):
        raw = bytearray(path.read_bytes())
        raw[-9] ^= 1
        path.write_bytes(raw)
    (here / "flipped" / "model.safetensors").unlink()
    (copy("metrics") / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    (copy("records") / "certify").mkdir()
    (here / "records" / "certify" / "records.jsonl").write_text('{"index": 0}\n')
    for name, change in EDITED.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here)
            copy(name)
            assert call(f"certify {name} --eps 0.05 --attack-steps 2 --limit 5 --threads 1") == 0
        file = here / name / "certify" / "records.jsonl"
        file.write_text(file.read_text().replace(*change))
    (copy("recordless") / "certify" / "records.jsonl").mkdir(parents=True)
    (copy("blocked") / "certify").write_text("in the way")
    (copy("forgotten") / "recipe.yaml").unlink()
    (copy("planted") / "recipe.yaml").write_text(RECIPES["own"])
    (copy("tagged") / "recipe.yaml").write_text(RECIPES["python"])
    (copy("laughed") / "recipe.yaml").write_text(RECIPES["laughs"])
    (copy("pickled") / "model.safetensors").write_bytes(EVIL)
    (copy("plain") / "model.safetensors").write_bytes((here / "good.safetensors").read_bytes())
    tensors, _ = checkpoint.load(here / "run" / "model.safetensors")
    for name, facts in {
        "shapeless": {"input_shape": "wide", "classes": 2},
        "endless": {"input_shape": [1, 10**9, 10**9], "classes": 2},
        "classless": {"input_shape": [1, 4, 4], "classes": -1},
        "other": {"input_shape": [1, 5, 5], "classes": 2},
    }.items():
        checkpoint.save(copy(name) / "model.safetensors", tensors, facts)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and many kinds of wrong input."""
    here = tmp_path_factory.mktemp("place")
    x, y = halves(150)
    npz_files(here, x, y)
    (here / "own.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        assert call(train().replace("--out new", "--out run")) == 0
    weight_files(here, checkpoint.load(here / "run" / "model.safetensors")[0])
    original_files(here, x, y)
    picture_files(here, x)
    for name, text in RECIPES.items():
        (here / f"{name}.yaml").write_text(text, encoding="latin-1")
    (here / "syntax.py").write_text("def net(:\n")
    (here / "bytes.py").write_bytes(bytes(range(128, 256)))
    (here / "leaves.py").write_text("import sys\nsys.exit('good bye')\n")
    damaged_runs(here)
    (here / "file").write_text("in the way")
    assert not (here / "executed").exists()
    return here


# What is wrong: the command, and a word of what must be said about it.
WEIGHTS = {
    "pickle as .pth": ("weights.pth", "save only the weights"),
    "pickle as .pt": ("weights.pt", "not a valid file of torch.save"),
    "pickle as .safetensors": ("pickle.safetensors", "pickle"),
    "zipped pickle as .safetensors": ("zip.safetensors", "pickle"),
    "truncated weights": ("torn.safetensors", "torn.safetensors"),
    "empty weights": ("empty.safetensors", "empty.safetensors"),
    "weights with a huge header": ("huge.safetensors", "huge.safetensors"),
    "weights with a garbled header": ("garbage.safetensors", "garbage.safetensors"),
    "weights that overlap": ("overlapping.safetensors", "overlapping.safetensors"),
    "weights beyond the file": ("outside.safetensors", "outside.safetensors"),
    "weights that are NaN": ("nan.safetensors", "NaN"),
    "weights of another shape": ("shapes.safetensors", "another shape"),
    "weights that are integers": ("integers.safetensors", "int64"),
    "weights that are missing": ("missing.safetensors", "1.bias"),
    "weights of another network": ("strange.safetensors", "5.extra"),
    "weights that are a folder": ("run", "folder"),
    "no such weights": ("nowhere.safetensors", "nowhere.safetensors"),
}
DATA = {
    "pickle as .pt data": ("data.pt", "data.pt"),
    "pickle as .pth data": ("data.pth", "data.pth"),
    "pickle as .pkl data": ("data.pkl", "data.pkl"),
    "pickle as .npz": ("pickle.npz", "pickle.npz"),
    "pickled objects in npz": ("objects.npz", "pickled"),
    "zip bomb": ("bomb.npz", "bomb.npz"),
    "npz that promises a petabyte": ("lying.npz", "lying.npz"),
    "single array as .npz": ("single.npz", "single.npz"),
    "npz without test images": ("lacking.npz", "x_test"),
    "infinite pixels": ("infinite.npz", "infinite"),
    "pixels beyond 1": ("large.npz", "scale them"),
    "complex pixels": ("complex.npz", "complex"),
    "flat images": ("flat.npz", "(16,)"),
    "no training images": ("empty.npz", "x_train"),
    "negative label": ("negative.npz", "-1"),
    "label that is no integer": ("halved.npz", "integers"),
    "label out of range": ("far.npz", "99999"),
    "one class alone": ("one.npz", "single class"),
    "idx files swapped": ("swapped", "swapped"),
    "idx header that promises too much": ("promising", "truncated"),
    "idx that is no gzip": ("zipped", "gzip"),
    "CIFAR's pickles": ("cifar-python", "pickle"),
    "truncated CIFAR": ("cifar-short", "30,729,999"),
    "CIFAR label out of range": ("cifar-label", "label 77"),
    "mat file that is text": ("mat-text", "not the published SVHN file"),
    "truncated mat file": ("mat-torn", "train_32x32.mat"),
    "picture bomb in a folder": ("picture-bomb", "pixels"),
    "text among the pictures": ("picture-text", "0.png"),
    "pictures of two sizes": ("picture-size", "6x6"),
    "picture of 16 bits": ("picture-deep", "8 bits"),
    "class without pictures": ("picture-none", "left"),
    "table that leaves its folder": ("table-leaves", "leads out"),
    "table with an absolute path": ("table-root", "leads out"),
    "table with a link that leaves": ("table-linked", "leads out"),
    "table that names no file": ("table-lacks", "99.png"),
    "table with half a line": ("table-torn", "Line 2"),
    "table that is binary": ("table-binary", "train.csv"),
    "folder of anything": ("run", "no known data set format"),
    "name of a file that can't be": (2000 * "n" + "/" + 2000 * "n", "nnn"),
}
FROM_RECIPES = {
    "recipe with a Python object": ("python", "no valid YAML"),
    "recipe of binary garbage": ("binary", "no valid YAML"),
    "recipe of a billion laughs": ("laughs", "alias"),
    "numbers of a billion laughs": ("laughing", "alias"),
    "recipe nested too deeply": ("nested", "nested"),
    "recipe with a number of 5000 digits": ("digits", "digits"),
    "recipe with a date that is none": ("date", "month"),
    "recipe that holds itself": ("itself", "alias"),
    "recipe with a list for a key": ("unhashable", "unhashable.yaml"),
    "recipe that is a number": ("number", "holds no recipe"),
    "empty recipe": ("nothing", "holds no recipe"),
    "recipe with a mapping for a number": ("types", "beta1 is"),
}
OTHERS = {
    "eps that is no number": (train(more="--eps nan"), "eps is 'nan'"),
    "infinite eps": (train(more="--eps inf"), "eps is 'inf'"),
    "eps divided by zero": (train(more="--eps 8/0"), "eps is '8/0'"),
    "eps of two slashes": (train(more="--eps 8/255/1"), "eps is '8/255/1'"),
    "negative fraction": (train(more="--eps=-8/255"), "eps is '-8/255'"),
    "radius that is nan": ("certify run --eps nan", "nan"),
    "radius that is infinite": ("attack run --eps inf", "inf"),
    "radius divided by zero": ("certify run --eps 8/0", "8/0"),
    "lr that is infinite": (train(more="--lr 1e999"), "lr is"),
    "seed that is too large": (train(more=f"--seed {2**70}"), "seed is"),
    "seed of 5000 digits": (train(more=f"--seed {5000 * '9'}"), "seed is"),
    "share above 100 percent": (train(more="--ramp 101%"), "ramp is"),
    "recipe that names code": ("train --recipe own.yaml --out new", "own.py:evil"),
    "network file with a syntax error": (train(net="syntax.py:net"), "SyntaxError"),
    "network file of garbage": (train(net="bytes.py:net"), "bytes.py"),
    "network file that leaves": (train(net="leaves.py:net"), "leaves.py"),
    "network that leaves": (train(net="own.py:leaves"), "own.py:leaves"),
    "network that calls itself": (train(net="own.py:deep"), "RecursionError"),
    "network of one logit": (train(net="own.py:single"), "(2, 1)"),
    "network of a third dimension": (train(net="own.py:cube"), "(2, 2, 1)"),
    "network that returns a number": (train(net="own.py:scalar"), "()"),
    "network with an operation without bounds": (train(net="own.py:unordered"), "sort"),
    "network that asks what it sees": (train(net="own.py:branching"), "'gt'"),
    "network that goes through numpy": (train(net="own.py:numpied"), "numpy"),
    "network without anything to train": (train(net="own.py:frozen"), "no trainable parameter"),
    "structure of 5000 layers": (train(net=", ".join(5000 * ["Conv 9 2x2+1"])), "does not fit"),
    "structure of many digits": (train(net=f"FC {5000 * '9'}"), "weights"),
    "file in the place of the run": (train(more="--out file"), "file"),
    "place that can't be written": (train(more="--out /sys/new"), "/sys/new"),
    "place with a name too long": (train(more=f"--out {300 * 'n'}"), "nnn"),
    "data root that can't be written": (train("svhn", more="--data-root /proc/new"), "/proc/new"),
    "data root that is a file": (train("svhn", more="--data-root file"), "file"),
    "size for what has one": (train(more="--size 8"), "size"),
    "flipped bits in all checkpoints": ("train --resume --out flipped", "All checkpoints of flipped are damaged"),
    "damaged metrics": ("train --resume --out metrics", "metrics.jsonl is damaged"),
    "damaged records": ("certify records --attack-steps 2", "records.jsonl is damaged"),
    "records with a strange verdict": ("certify verdict --attack-steps 2", "records.jsonl is damaged in line 1"),
    "records that were edited": ("certify better --attack-steps 2", "in line 5: it was changed after it was written"),
    "records that were edited, reported": ("report better --out new.html", "in line 5: it was changed after"),
    "records that were edited, compared": ("compare run better", "in line 5: it was changed after"),
    "records that are a folder": ("certify recordless --attack-steps 2", "records.jsonl"),
    "file in the place of the records": ("certify blocked --attack-steps 2", "certify"),
    "certifying without a recipe": ("certify forgotten", "recipe.yaml is missing"),
    "resuming without a recipe": (train().replace("--out new", "--resume --out forgotten"), "recipe.yaml"),
    "code planted in a run": ("certify planted", "own.py:evil"),
    "code planted in a run, resumed": ("train --resume --out planted", "own.py:evil"),
    "Python object planted in a run": ("certify tagged", "recipe.yaml is damaged"),
    "a billion laughs planted in a run": ("certify laughed", "recipe.yaml is damaged"),
    "pickle in the place of a model": ("certify pickled", "pickled/model.safetensors"),
    "safetensors without a checksum as a model": ("predict plain test:0", "is not an advibp file"),
    "model with a shape that is none": ("certify shapeless", "input_shape"),
    "model for endless images": ("predict endless first.png", "weights"),
    "model of minus one class": ("certify classless", "class"),
    "model for other images": ("certify other", "other/model.safetensors"),
    "picture bomb to predict": ("predict run bomb.png", "bomb.png"),
    "PostScript as a picture": ("predict run script.png", "script.png"),
    "picture with an alpha channel": ("predict run glass.png", "transparent pixels"),
    "picture with a transparent color": ("predict run hole.png", "transparent pixels"),
    "picture that is a folder": ("predict run run", "run"),
    "nothing to fetch": ("data fetch", "needs the name of a data set"),
    "unknown set to fetch": ("data fetch cifar11", "cifar10"),
    "set to fetch to where nobody writes": ("data fetch svhn --data-root /proc/new", "/proc/new"),
    "set to check that is damaged": ("data check cifar10 --data-root damaged-root", "cifar10"),
    "evil data to look at": ("data objects.npz", "pickled"),
    "picture bomb to look at": ("data picture-bomb", "pixels"),
    "two things to look at": ("data objects.npz run", "'data' takes"),
    "evil data to certify": ("certify run --data objects.npz", "pickled"),
}
BAD: dict[str, tuple[str, str]] = {
    **{name: (train(more=f"--weights {file}"), word) for name, (file, word) in WEIGHTS.items()},
    **{name: (train(data), word) for name, (data, word) in DATA.items()},
    **{name: (train(more=f"--recipe {recipe}.yaml"), word) for name, (recipe, word) in FROM_RECIPES.items()},
    **OTHERS,
}


def snapshot(folder: Path) -> dict[Path, tuple[int, int, int]]:
    found = {path: path.lstat() for path in folder.rglob("*") if "__pycache__" not in path.parts}
    return {
        path: (s.st_mode, 0, 0) if stat.S_ISDIR(s.st_mode) else (s.st_mode, s.st_size, s.st_mtime_ns)
        for path, s in found.items()
    }


@contextmanager
def bounded() -> Iterator[None]:
    """Limit time and memory."""

    def too_long(*_: Any) -> None:
        pytest.fail(f"took more than {PATIENCE} seconds")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY * 1024


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder as current folder, without a network connection."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ADVIBP_MIRROR", "http://127.0.0.1:9")
    yield place
    (place / "executed").unlink(missing_ok=True)  # one failure is not to be the next one's
    shutil.rmtree(place / "new", ignore_errors=True)


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_has_a_message_of_one_line_and_no_side_effects(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, word = BAD[kind]
    before = snapshot(here)
    with bounded():
        assert call(command) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert "Traceback" not in said
    assert len(said) < 6000
    assert word in said
    assert snapshot(here) == before  # `executed` is not there either


def test_an_opaque_alpha_channel_changes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("predict run first.png opaque.png") == 0
    plain, opaque = capsys.readouterr().out.splitlines()
    assert opaque == plain.replace("first.png", "opaque.png")


def test_a_set_too_small_for_validation_can_be_certified(here: Path, tmp_path: Path) -> None:
    x, y = halves(4)
    np.savez(tmp_path / "small.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    shutil.copytree(here / "run", tmp_path / "run")
    options = "--eps 0.05 --attack-steps 2 --threads 1"
    assert call(f"certify {tmp_path / 'run'} --data {tmp_path / 'small.npz'} {options}") == 0
    assert (tmp_path / "run" / "certify-on-small" / "records.jsonl").read_text().count("\n") == 4


ESCAPE = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e"


def test_escape_sequences_are_not_printed(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From recipes, file names, class names, run names and error messages."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / f"run{ESCAPE}"
    shutil.copytree(here / "run", run)
    shutil.copytree(here / "run", tmp_path / "other")
    said = (run / "recipe.yaml").read_text()
    Path("evil.yaml").write_text(json.dumps({"method": ESCAPE}))
    Path("key.yaml").write_text(json.dumps({ESCAPE: 1}))
    Path(f"{ESCAPE}.npz").write_bytes((here / "data.npz").read_bytes())
    x, _ = halves(40)
    for i, image in enumerate(x):
        folder = Path("pictures") / "train" / f"{ESCAPE}{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}{ESCAPE}.png")
    Image.fromarray(x[0]).save(f"{ESCAPE}.png")
    short = ["--data", str(here / "data.npz"), "--eps", "0.05", "--attack-steps", "2", "--limit", "5"]
    commands = [
        (0, ["certify", str(run), *short]),
        (0, ["attack", str(run), *short]),
        (0, ["predict", str(run), f"{ESCAPE}.png"]),
        (0, ["data", f"{ESCAPE}.npz"]),
        (0, ["data", "pictures"]),
        (0, ["watch", str(run), "--once"]),
        (0, ["compare", str(run), "other"]),
        (0, ["report", str(run), "--out", f"{ESCAPE}.html"]),
        (2, ["certify", f"{ESCAPE}"]),
        (2, ["train", "--recipe", "evil.yaml"]),
        (2, ["train", "--recipe", "key.yaml"]),
        (2, ["train", ESCAPE, "a"]),
        (2, ["certify", "run", "--attack-steps", ESCAPE]),
    ]
    for code, command in commands:
        assert call(shlex.join(command)) == code, command
        out, err = capsys.readouterr()
        assert out + err
        assert not set("\x1b\x07\x9b\u202e") & set(out + err), command
    lines = [line for line in said.splitlines() if not line.startswith("method:")]
    (run / "recipe.yaml").write_text("\n".join([*lines, f"method: {json.dumps(ESCAPE)}", ""]))
    assert call(shlex.join(["certify", str(run)])) == 2
    assert "\x1b" not in capsys.readouterr().err


# Archives: what is fetched has a known checksum, so that evil ones get no farther than this.


@pytest.fixture
def evil_mirror() -> Iterator[str]:
    """A web server that sends an archive with a path outside of its folder for every request."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(member("../../executed"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(archive.getvalue())))
            self.end_headers()
            self.wfile.write(archive.getvalue())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_mirror_with_wrong_files(
    evil_mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADVIBP_MIRROR", evil_mirror)
    monkeypatch.setattr(shutil, "which", lambda name: None)  # nor is there npm, the other way to these images
    with bounded():
        assert call(f"data fetch cifar10 --data-root {tmp_path / 'root'}") == 2
    *progress, said = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert "expected" in said
    assert all("MB" in line for line in progress)
    unpacked = [p for p in tmp_path.rglob("*") if p.is_file() and p.parts[-3:-1] != (".fetch", "cifar10")]
    assert {p.suffix for p in unpacked} <= {".lock"}
    assert not (tmp_path / "executed").exists()


def member(name: str, **attributes: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


MEMBERS: dict[str, Callable[[], tarfile.TarInfo]] = {
    "name that leaves": lambda: member("../executed"),
    "name that leaves later": lambda: member("folder/../../executed"),
    "absolute name": lambda: member("/tmp/advibp-executed"),
    "link": lambda: member("good", type=tarfile.SYMTYPE, linkname="../secret.png"),
    "hard link": lambda: member("good", type=tarfile.LNKTYPE, linkname="../secret.png"),
    "pipe": lambda: member("good", type=tarfile.FIFOTYPE),
    "device": lambda: member("good", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "size without end": lambda: member("good", size=2**62),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_an_archive_with_anything_but_plain_files_is_not_unpacked(kind: str, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_text("not yours")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        tar.addfile(member("first", size=4), io.BytesIO(b"good"))
        assert tar.fileobj
        tar.fileobj.write(MEMBERS[kind]().tobuf(tarfile.PAX_FORMAT))
    before = snapshot(tmp_path)
    with bounded(), pytest.raises(UserError) as raised:
        archives.extract(tmp_path / "evil.tar.gz", tmp_path / "out", members=lambda name: name, max_bytes=1000)
    assert "\n" not in str(raised.value)
    assert snapshot(tmp_path) == before
    assert not Path("/tmp/advibp-executed").exists()


def test_an_archive_that_unpacks_to_too_much_is_stopped(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as tar:
        tar.addfile(member("zeros", size=50_000_000), io.BytesIO(bytes(50_000_000)))
    with bounded(), pytest.raises(UserError, match="more than the 1,000 bytes"):
        archives.extract(tmp_path / "bomb.tar.gz", tmp_path / "out", members=lambda name: name, max_bytes=1000)
    assert [p.name for p in tmp_path.iterdir()] == ["bomb.tar.gz"]
