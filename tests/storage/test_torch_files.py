"""Files of torch.save: tensors are read, and nothing in a file runs."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advibp import UserError, load_weights


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


GIVEN = network(1)
STATE = GIVEN.state_dict()
LAYOUTS: dict[str, Any] = {
    "plain": STATE,
    "state_dict": {"epoch": 3, "lr": 0.1, "names": ["a", "b"], "state_dict": STATE},
    "model_state_dict": {"model_state_dict": STATE, "optimizer": {"state": {}, "param_groups": []}},
    "model": {"model": dict(STATE), "best": torch.tensor(0.5)},
    "parallel": nn.DataParallel(GIVEN).state_dict(),
    "parallel, nested": {"state_dict": nn.DataParallel(GIVEN).state_dict()},
    "compiled": {f"_orig_mod.{name}": value for name, value in STATE.items()},
    "compiled and parallel": {f"module._orig_mod.{name}": value for name, value in STATE.items()},
    "parameters": dict(GIVEN.state_dict(keep_vars=True)),
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_state_dicts_are_loaded(tmp_path: Path, layout: str, legacy: bool) -> None:
    torch.save(LAYOUTS[layout], tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy)
    net = network()
    load_weights(net, tmp_path / "w.pt")
    assert same(net, GIVEN)


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt", "PTH"])
def test_names_of_files(tmp_path: Path, suffix: str) -> None:
    torch.save(STATE, tmp_path / f"w.{suffix}")
    net = network()
    load_weights(net, tmp_path / f"w.{suffix}")
    assert same(net, GIVEN)


def test_a_parallel_network_keeps_its_prefix(tmp_path: Path) -> None:
    torch.save(nn.DataParallel(GIVEN).state_dict(), tmp_path / "w.pt")
    net = nn.DataParallel(network())
    load_weights(net, tmp_path / "w.pt")
    assert same(net.module, GIVEN)


class ShellTrap:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.file}'",)


class OwnModule(nn.Module):
    def __setstate__(self, state: Any) -> None:
        raise AssertionError("this code must not run")


def tar_of(content: bytes) -> bytes:
    """The format of torch before 0.1.10, with a pickle in each of its members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("storages", "tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def saved(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def zip_with(content: bytes) -> bytes:
    """An archive as torch.save writes it, with another pickle inside."""
    source, target = zipfile.ZipFile(io.BytesIO(saved(STATE))), io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for info in source.infolist():
            archive.writestr(info, content if info.filename.endswith("data.pkl") else source.read(info))
    return target.getvalue()


def torchscript() -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(network().eval(), torch.rand(1, 4)), file)
    return file.getvalue()


HOSTILE: dict[str, Callable[[ShellTrap], bytes]] = {
    "zip": lambda trap: saved(trap),
    "zip, nested": lambda trap: saved({"state_dict": {**STATE, "extra": trap}}),
    "zip, other pickle inside": lambda trap: zip_with(pickle.dumps(trap)),
    "legacy": lambda trap: saved(trap, _use_new_zipfile_serialization=False),
    "tar": lambda trap: tar_of(pickle.dumps(trap)),
    **{f"pickle of protocol {n}": (lambda trap, n=n: pickle.dumps(trap, protocol=n)) for n in range(6)},
    "pickle in place of the magic number": lambda trap: pickle.dumps(trap) + saved(STATE),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, force: bool, suffix: str
) -> None:
    if force:  # torch's switch for callers that do not say weights_only
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    file, ran = tmp_path / f"w.{suffix}", tmp_path / "ran"
    file.write_bytes(HOSTILE[kind](ShellTrap(ran)))
    net = network()
    with pytest.raises(UserError) as raised:
        load_weights(net, file)
    assert not ran.exists()
    assert "\n" not in str(raised.value)
    assert str(file) in str(raised.value)
    assert "save" in str(raised.value)
    assert same(net, network())


def test_bytes_after_a_state_dict_are_not_read(tmp_path: Path) -> None:
    trap = pickle.dumps(ShellTrap(tmp_path / "ran"))
    (tmp_path / "w.pt").write_bytes(saved(STATE, _use_new_zipfile_serialization=False) + trap)
    net = network()
    load_weights(net, tmp_path / "w.pt")
    assert same(net, GIVEN)
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("content", "word"),
    [
        (lambda: saved(network()), "torch.nn.modules.container.Sequential"),
        (lambda: saved(OwnModule()), "OwnModule"),
        (lambda: saved(network(), _use_new_zipfile_serialization=False), "torch.nn.modules.container.Sequential"),
        (lambda: saved(ShellTrap(Path("x"))), "posix.system"),
        (torchscript, "which torch.save does not write"),
        (lambda: tar_of(b""), "objects other than tensors"),
        (lambda: saved([1, 2]), "contains no state_dict"),
        (lambda: saved({"state_dict": {"a": 1}}), "contains no state_dict"),
        (lambda: saved({}), "contains no state_dict"),
        (lambda: saved(torch.rand(3)), "contains no state_dict"),
        (lambda: saved({"1.weight": torch.rand(3, 4).to_sparse()}), "is sparse"),
        (lambda: saved({"1.weight": torch.rand(3, 4, device="meta")}), "has no values"),
        (lambda: saved(STATE)[:200], "not a valid file of torch.save"),
        (lambda: b"no pickle", "not a valid file of torch.save"),
        (lambda: b"", "not a valid file of torch.save"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, content: Callable[[], bytes], word: str) -> None:
    (tmp_path / "w.pt").write_bytes(content())
    with pytest.raises(UserError) as raised:
        load_weights(network(), tmp_path / "w.pt")
    assert word in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_zip_bomb_is_not_inflated(tmp_path: Path) -> None:
    source = zipfile.ZipFile(io.BytesIO(saved({"1.weight": torch.zeros(1_000_000)})))
    with zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for info in source.infolist():
            archive.writestr(info.filename, source.read(info))
    with pytest.raises(UserError, match="compressed archive"):
        load_weights(network(), tmp_path / "w.pt")


def test_a_tensor_that_is_larger_than_its_storage_is_refused(tmp_path: Path) -> None:
    """A stride of 0 makes a tensor of any size from one number; its shape does not match."""
    huge: Tensor = torch.zeros(1).expand(10**12)
    torch.save({**STATE, "1.weight": huge}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="another shape"):
        load_weights(network(), tmp_path / "w.pt")
