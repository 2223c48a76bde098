"""Checkpoints: exact round trips; flipped bits, truncated files and pickles are refused; writes are atomic."""

from __future__ import annotations

import errno
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from advibp import UserError, nets
from advibp.storage import checkpoint

torch.set_num_threads(1)

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
shapes = st.lists(st.integers(0, 4), max_size=4)
anything_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
with_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def tensor(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
    """Random bytes, so that NaN, infinities and denormal numbers are among the values."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape, size), generator=generator, dtype=torch.uint8)
    return raw.reshape(-1).view(dtype).reshape(shape)


def raw_bytes(value: Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        (a[k].dtype, a[k].shape, raw_bytes(a[k])) == (b[k].dtype, b[k].shape, raw_bytes(b[k])) for k in a
    )


@with_folder
@given(
    contents=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), shapes, st.integers(0, 999)),
        max_size=4,
    ),
    facts=st.dictionaries(st.text(max_size=5), anything_json, max_size=3),
)
def test_round_trip_is_exact(
    contents: dict[str, tuple[torch.dtype, list[int], int]], facts: dict[str, Any], tmp_path: Path
) -> None:
    tensors = {name: tensor(*content) for name, content in contents.items()}
    checkpoint.save(tmp_path / "a.safetensors", tensors, facts)
    loaded, told = checkpoint.load(tmp_path / "a.safetensors")
    assert same(loaded, tensors)
    assert told == facts


def test_shared_and_transposed_tensors_are_saved(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"base": base, "turned": base.T, "row": base[1], "spread": base[:1].expand(3, 4), "one": base[0, 0]}
    checkpoint.save(tmp_path / "a.safetensors", tensors)
    loaded, facts = checkpoint.load(tmp_path / "a.safetensors")
    assert same(loaded, tensors)
    assert facts == {}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A checkpoint of a run."""
    path = tmp_path / "epoch-00003.safetensors"
    tensors = {"net.0.weight": torch.randn(3, 4), "weighting.t": torch.tensor(7), "optimizer.0.step": torch.tensor(7.0)}
    checkpoint.save(path, tensors, {"steps": 12, "c_max": 1e-05, "seconds": 3.25, "best": None})
    return path


def test_flipped_bits_are_detected(whole: Path) -> None:
    """In every byte of the file: lengths, names, shapes, facts, checksum, padding and numbers."""
    content = whole.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << random.Random(position).randrange(8)
        whole.write_bytes(damaged)
        with pytest.raises(UserError):
            checkpoint.load(whole)
    whole.write_bytes(content)
    assert checkpoint.load(whole)[1]["steps"] == 12


def test_truncated_and_extended_files_are_detected(whole: Path) -> None:
    content = whole.read_bytes()
    for damaged in [*(content[:length] for length in range(len(content))), content + b"\0", content + content]:
        whole.write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            checkpoint.load(whole)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=st.binary(max_size=200))
def test_random_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.safetensors is"):
        checkpoint.load(tmp_path / "a.safetensors")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"advibp": "0"}, {"advibp": "1"}])
def test_a_foreign_safetensors_file_is_refused(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "a.safetensors", metadata=metadata)
    with pytest.raises(UserError, match=r"not an advibp file|checksum"):
        checkpoint.load(tmp_path / "a.safetensors")


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_pickle_is_never_read(by_torch: bool, tmp_path: Path) -> None:
    path, sprung = tmp_path / "model.safetensors", tmp_path / "sprung"
    if by_torch:
        torch.save({"weight": Trap(sprung)}, path)
    else:
        path.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load(path)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap was a real one


@pytest.mark.parametrize("there", [False, True])
def test_a_missing_file_and_a_folder_are_refused(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(UserError):
        checkpoint.load(tmp_path / "a.safetensors")


# Atomic writes


@given(old=st.none() | st.binary(max_size=50), new=st.binary(max_size=50))
@with_folder
def test_writing_replaces_the_whole_file(old: bytes | None, new: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    if old is not None:
        path.write_bytes(old)
    checkpoint.write_atomically(path, new)
    assert path.read_bytes() == new
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file(
    call: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    path = tmp_path / "file"
    checkpoint.write_atomically(path, "old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        checkpoint.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_write_to_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to /dev/full always fails; the temporary file is redirected to it."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    path = tmp_path / "file"
    checkpoint.write_atomically(path, "old")
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *args: real(Path("/dev/full"), *args))
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write_atomically(path, "new" * 100_000)
    monkeypatch.undo()
    assert path.read_text() == "old"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_while_writing_leaves_the_old_file(call: str, tmp_path: Path) -> None:
    """A child process dies without any clean-up, as by kill -9, just before the flush or the rename."""
    path = tmp_path / "file"
    checkpoint.write_atomically(path, "old")
    child = os.fork()
    if child == 0:
        setattr(os, call, lambda *_: os._exit(9))
        checkpoint.write_atomically(path, "new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert path.read_text() == "old"
    checkpoint.write_atomically(path, "newer")
    assert path.read_text() == "newer"


def test_permissions_of_written_files(tmp_path: Path) -> None:
    """The permissions are those of a new file, not those of a private temporary file."""
    (tmp_path / "plain").write_text("")
    checkpoint.write_atomically(tmp_path / "file", "")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


# What a run keeps


def test_newest_first_and_the_rest_is_pruned(tmp_path: Path) -> None:
    epochs = random.Random(0).sample(range(1, 2000), 12)
    for epoch in epochs:
        (tmp_path / checkpoint.file_name(epoch)).touch()
    (tmp_path / "best.safetensors").touch()
    (tmp_path / f".{checkpoint.file_name(3000)}.123").touch()  # what a kill left behind
    want = [checkpoint.file_name(epoch) for epoch in sorted(epochs, reverse=True)]
    assert [p.name for p in checkpoint.newest(tmp_path)] == want
    checkpoint.prune(tmp_path, 2)
    assert [p.name for p in checkpoint.newest(tmp_path)] == want[:2]
    assert {p.name for p in tmp_path.iterdir()} == {*want[:2], "best.safetensors"}


def test_optimizer_continues_exactly(tmp_path: Path) -> None:
    def descend(net: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for k in range(first, last):
            net(torch.full((2, 1, 3, 3), k / 10)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    nets_, optimizers = zip(
        *((net, torch.optim.Adam(net.parameters(), fused=True)) for net in small_nets()), strict=True
    )
    descend(nets_[0], optimizers[0], 0, 8)
    descend(nets_[1], optimizers[1], 0, 4)
    checkpoint.save(tmp_path / "a", checkpoint.optimizer_tensors(optimizers[1]))
    fresh = torch.optim.Adam(nets_[1].parameters(), fused=True)
    checkpoint.load_optimizer(fresh, checkpoint.load(tmp_path / "a")[0])
    descend(nets_[1], fresh, 4, 8)
    assert all(torch.equal(a, b) for a, b in zip(nets_[0].parameters(), nets_[1].parameters(), strict=True))


def small_nets() -> list[torch.nn.Module]:
    return [nets.build("FC 4", (1, 3, 3), 2, seed=0) for _ in range(2)]


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    net = small_nets()[0]
    with pytest.raises(UserError, match="do not match") as raised:
        checkpoint.load_state(net, nets.build("FC 5", (1, 3, 3), 2).state_dict(), tmp_path / "a")
    assert "\n" not in str(raised.value)


def test_fingerprint_differs_for_other_weights() -> None:
    one, two = small_nets()
    assert checkpoint.fingerprint(one.state_dict()) == checkpoint.fingerprint(two.state_dict())
    with torch.no_grad():
        next(two.parameters()).view(-1)[0] += 1e-6
    assert checkpoint.fingerprint(one.state_dict()) != checkpoint.fingerprint(two.state_dict())


@given(prefix=st.sampled_from(["net", "weighting"]))
def test_groups_are_taken_apart_by_their_first_name(prefix: str) -> None:
    tensors = {"net.0.weight": torch.zeros(1), "weighting.t": torch.zeros(2), "network.x": torch.zeros(3)}
    want = {"net": {"0.weight": 1}, "weighting": {"t": 2}}[prefix]
    assert {k: len(v) for k, v in checkpoint.group(prefix, tensors).items()} == want
