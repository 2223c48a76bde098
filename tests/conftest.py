"""What all tests share: one thread per worker, and random numbers that are the same in every run.

In `make test` nothing is left to chance: hypothesis derives its examples from the test (profile "ci"), and the random
numbers of torch, numpy and random follow from the test's name, whatever ran before it and on whichever worker. With
ADVIBP_FUZZ_SEED set, to an integer, all of them also depend on that seed (profile "fuzz"); see checks/fuzz.py.
"""

from __future__ import annotations

import os
import random
import signal
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

pytest_plugins = ["trained_runs"]  # fixtures of tests/helpers

FUZZ_SEED = os.environ.get("ADVIBP_FUZZ_SEED")

# Loggers stay offline and send no statistics, and plots need no screen.
os.environ.update(
    WANDB_MODE="offline", WANDB_ERROR_REPORTING="false", MLFLOW_DISABLE_TELEMETRY="true", MPLBACKEND="Agg"
)

# In the environment of xdist's workers and of programs that tests start, sets of strings have one order.
os.environ.setdefault("PYTHONHASHSEED", "0")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers already fill the cores

# Whether data are generated too slowly depends on what else the machine does.
_ALWAYS: dict[str, Any] = {"deadline": None, "database": None, "print_blob": True}
settings.register_profile(
    "ci", max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow], **_ALWAYS
)
settings.register_profile(
    "fuzz", max_examples=200, derandomize=False, suppress_health_check=[HealthCheck.too_slow], **_ALWAYS
)
settings.load_profile("ci" if FUZZ_SEED is None else "fuzz")

# A shell that runs the tests in the background makes them ignore Ctrl-C, and their children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _number(name: str) -> int:
    """A seed below 2^32 from a name and, when fuzzing, the base seed. (hash() differs between processes.)"""
    return zlib.crc32(f"{FUZZ_SEED or 0} {name}".encode())


def _seed(name: str) -> None:
    number = _number(name)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class _Torch:
    """Torch's generator as hypothesis wants it, which seeds it before each example and restores its state afterwards.

    An example is then a function of its arguments, so that hypothesis can repeat and shrink one that fails.
    """

    def seed(self, number: int) -> None:
        torch.manual_seed(_number(str(number)))

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


_TORCH = _Torch()  # (hypothesis keeps a weak reference)
hypothesis.register_random(_TORCH)

# Hypothesis also draws constants that it finds in the modules that are loaded. Which are depends on the tests before,
# and so would the examples of a test.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


def pytest_report_header() -> str | None:
    return None if FUZZ_SEED is None else f"fuzzing: ADVIBP_FUZZ_SEED={FUZZ_SEED}"


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Random numbers that a module draws when it is imported."""
    _seed(collector.nodeid)


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Random numbers of a test, and of fixtures that are made for it alone."""
    _seed(request.node.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, object, object]:
    """Random numbers of fixtures that tests share: which test of a worker comes first must not matter."""
    if fixturedef.scope == "function":
        return (yield)
    with _own_stream(f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}]"):
        return (yield)


@contextmanager
def _own_stream(name: str) -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    _seed(name)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
