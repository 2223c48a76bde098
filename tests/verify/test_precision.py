"""Inside of a certification float32 is float32; afterwards torch is as the user had set it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from advibp.verify.precision import full_precision


def settings() -> dict[str, object]:
    """What torch says of each of its switches; None for those that this version does not have."""
    matmul, cudnn, mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    found: dict[str, object] = {"precision": torch.get_float32_matmul_precision(), "cudnn": cudnn.allow_tf32}
    for name, owner in {
        "cuda.matmul": matmul,
        **{f"cudnn.{op}": getattr(cudnn, op, None) for op in ("conv", "rnn")},
        **{f"mkldnn.{op}": getattr(mkldnn, op, None) for op in ("matmul", "conv", "rnn")},
    }.items():
        found[name] = getattr(owner, "fp32_precision", None)
    return found


@pytest.mark.parametrize("precision", ["medium", "high", "highest"])
def test_float32_products_are_exact_and_settings_are_restored(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    try:
        before = settings()
        with full_precision():
            inside = settings()
            assert not torch.backends.cuda.matmul.allow_tf32
        assert settings() == before
        assert inside.pop("precision") == "highest"
        assert set(inside.values()) <= {False, "ieee", None}
    finally:
        torch.set_float32_matmul_precision("highest")


NEWER = """
import os, sys, torch
from advibp.verify.precision import full_precision
for place in sys.argv[1:]:
    if not os.fork():
        break
else:
    sys.exit(any(os.wait()[1] for _ in sys.argv[1:]))
backends = torch.backends
exec(f"backends.{place}")
names = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
def read():
    return [eval(f"backends.{name}.fp32_precision") for name in names]
before = read()
with full_precision():
    assert read() == ["ieee"] * 6, read()
assert read() == before, (read(), before)
"""

PLACES = (
    "fp32_precision = 'tf32'",
    "mkldnn.matmul.fp32_precision = 'bf16'",
    "mkldnn.conv.fp32_precision = 'bf16'",
    "cuda.matmul.fp32_precision = 'tf32'",
)


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="torch has the older switches alone")
def test_the_newer_settings_are_restored() -> None:
    """In processes of their own: torch refuses to tell the older ones once the newer were used."""
    done = subprocess.run([sys.executable, "-c", NEWER, *PLACES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
