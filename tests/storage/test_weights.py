"""Weights of one's own: what is read comes back to the bit, and what does not fit is refused whole."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor, nn

from advibp import UserError, nets
from advibp.storage import checkpoint
from advibp.storage.weights import load_weights

SPEC = "Conv 2 3x3+1p1 BN, Res 3+2 BN, FC 4 BN"


def small(seed: int = 0, spec: str = SPEC) -> nn.Sequential:
    net = nets.build(spec, (1, 5, 5), 3, seed=seed)
    net(torch.rand(4, 1, 5, 5, generator=torch.Generator().manual_seed(seed)))  # statistics not those of a new one
    return net


def same(a: nn.Module, b: nn.Module) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return list(one) == list(two) and all(torch.equal(one[k], two[k]) for k in one)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_round_trip_to_the_bit(tmp_path_factory: pytest.TempPathFactory, seed: int, dtype: torch.dtype) -> None:
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    given_, net = small(seed).to(dtype), small(seed + 1).to(dtype)
    save_file(given_.state_dict(), path)
    assert not same(given_, net)
    load_weights(net, path)
    assert same(given_, net)


def test_model_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, small(1).state_dict(), {"classes": 3})
    net = small()
    load_weights(net, str(path))
    assert same(net, small(1))


def test_a_flipped_bit_in_a_runs_model_is_found(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, small(1).state_dict())
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    refused(small(), path, "checksum")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_another_floating_point_type_is_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    given_, net = small(1), small()
    held = {k: v.to(dtype) if v.is_floating_point() else v for k, v in given_.state_dict().items()}
    save_file(held, tmp_path / "w.safetensors")
    load_weights(net, tmp_path / "w.safetensors")
    for name, value in net.state_dict().items():
        assert value.dtype == given_.state_dict()[name].dtype
        assert torch.equal(value, held[name].to(value.dtype))


def refused(net: nn.Module, path: Path, said: str) -> str:
    """Return the error message; the network must be unchanged."""
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(UserError) as caught:
        load_weights(net, path)
    assert said in str(caught.value)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    return str(caught.value)


def changed(**changes: Tensor | None) -> dict[str, Tensor]:
    """Return a state_dict with some entries changed; `__` stands for a dot."""
    found = {**small(1).state_dict(), **{k.replace("__", ".").strip("."): v for k, v in changes.items()}}
    return {k: v for k, v in found.items() if v is not None}


NAN, INF = torch.full((4,), float("nan")), torch.tensor([1.0, 1.0, 1.0, float("inf")])
MISFITS = {
    "missing": (changed(__5__bias=None), "1 missing ('5.bias')"),
    "two missing": (changed(__5__bias=None, __5__weight=None), "2 missing (first '5.weight')"),
    "unexpected": (changed(head=torch.zeros(2)), "1 unknown ('head')"),
    "misshaped": (changed(__5__bias=torch.zeros(5)), "1 of another shape ('5.bias', (5,) for (4,))"),
    "scalar for a vector": (changed(__5__bias=torch.tensor(0.0)), "another shape ('5.bias', () for (4,))"),
    "all at once": (
        changed(__5__bias=None, head=torch.zeros(2), __0__bias=torch.zeros(7)),
        "1 missing ('5.bias'), 1 unknown ('head'), 1 of another shape ('0.bias', (7,) for (2,))",
    ),
    "nan": (changed(__5__bias=NAN), "'5.bias'"),
    "inf": (changed(__5__bias=INF), "NaN or infinite"),
    "overflow": (changed(__5__bias=torch.full((4,), 1e300, dtype=torch.float64)), "infinite values as torch.float32"),
    "integer for float": (changed(__5__bias=torch.ones(4, dtype=torch.int64)), "has type torch.int64"),
    "bool for float": (changed(__5__bias=torch.ones(4, dtype=torch.bool)), "has type torch.bool"),
    "float for integer": (changed(__1__num_batches_tracked=torch.tensor(1.0)), "has type torch.float32"),
    "nan statistics": (changed(__1__running_var=torch.full((2,), float("nan"))), "'1.running_var'"),
    "nothing": ({}, "missing (first '0.weight')"),
    "all under a prefix": ({f"model.{k}": v for k, v in changed().items()}, "(first 'model.0.bias')"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_mismatching_weights_are_refused(tmp_path: Path, name: str) -> None:
    tensors, said = MISFITS[name]
    save_file(tensors, tmp_path / "w.safetensors")
    refused(small(), tmp_path / "w.safetensors", said)


def pickles() -> dict[str, bytes]:
    new, old = io.BytesIO(), io.BytesIO()
    torch.save(small().state_dict(), new)
    torch.save(small().state_dict(), old, _use_new_zipfile_serialization=False)
    plain = {f"protocol {n}": pickle.dumps({"a": [1.0, 2.0, 3.0]}, protocol=n) for n in (2, 3, 4, 5)}
    return {"zip": new.getvalue(), "legacy": old.getvalue(), **plain}


@pytest.mark.parametrize("name", pickles())
def test_a_pickle_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    (tmp_path / "w.safetensors").write_bytes(pickles()[name])
    said = refused(small(), tmp_path / "w.safetensors", "is a pickle by its first bytes")
    assert "can run code" in said
    assert 'safetensors.torch.save_file(net.state_dict(), "w.safetensors")' in said


def test_header_length_that_looks_like_a_pickle(tmp_path: Path) -> None:
    """safetensors begin with the length of their header, and 0x0280 bytes are 80 02, as in a pickle."""
    net = nn.Linear(2, 2)
    for length in range(500):
        raw = save(net.state_dict(), metadata={"note": "x" * length})
        if raw[:2] == b"\x80\x02":
            break
    (tmp_path / "w.safetensors").write_bytes(raw)
    assert raw[:2] == b"\x80\x02"
    other = nn.Linear(2, 2)
    load_weights(other, tmp_path / "w.safetensors")
    assert same(net, other)


@settings(max_examples=100)
@given(raw=st.binary(max_size=40))
def test_random_bytes_are_refused_with_a_message(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(raw)
    refused(nn.Linear(1, 1), path, str(path))


@settings(max_examples=30)
@given(share=st.floats(0, 0.999))
def test_a_file_cut_short_is_refused(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    raw = save(small().state_dict())
    path.write_bytes(raw[: int(share * len(raw))])
    refused(small(), path, "not a valid safetensors file")


def test_folder_and_missing_file_are_refused(tmp_path: Path) -> None:
    refused(small(), tmp_path, "is a folder; give a file in it")
    refused(small(), tmp_path / "none.safetensors", "do not exist")


def test_lazy_layers_must_know_their_shape(tmp_path: Path) -> None:
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "w.safetensors")
    net = nn.LazyLinear(2)
    with pytest.raises(UserError, match="lazy layers"):
        load_weights(net, tmp_path / "w.safetensors")
    net(torch.rand(1, 2))
    load_weights(net, tmp_path / "w.safetensors")


def test_frozen_parameters_are_filled_and_stay_frozen(tmp_path: Path) -> None:
    save_file(small(1).state_dict(), tmp_path / "w.safetensors")
    net = small().requires_grad_(False)
    load_weights(net, tmp_path / "w.safetensors")
    torch.testing.assert_close(net[0].weight, small(1)[0].weight)
    assert not any(p.requires_grad for p in net.parameters())
