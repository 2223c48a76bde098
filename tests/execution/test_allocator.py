"""Freed memory is reused without page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from advibp import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def touch():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(50_000_000 // 4).add(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
touch()
print(touch())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_second_step_has_no_page_faults() -> None:
    found = {}
    for mode in ("keep", "leave"):
        done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        found[mode] = int(done.stdout)
    assert found["keep"] < 100 < found["leave"]
