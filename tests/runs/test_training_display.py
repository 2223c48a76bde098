"""What a person sees: whole lines, with a dash where a phase has no number."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from advibp import data, nets, train
from advibp.display.progress import Counting
from advibp.runs.training_display import HEADER, Live, Silent, clock, epoch_line, losses
from advibp.training.metrics import Step
from advibp.weighting import Weights

torch.set_num_threads(1)

ALWAYS: dict[str, Any] = {"epoch": 3, "phase": "full", "eps": 0.3, "seconds": 1.5}
ALWAYS |= {"standard_error": 0.01, "verified_error": 0.1}
SOMETIMES = ("loss_lower", "loss_upper", "kappa_lower", "kappa_upper", "angle")


@given(seconds=st.floats(0, 1e7))
def test_clock_is_exact_to_the_second(seconds: float) -> None:
    said = clock(seconds)
    assert re.fullmatch(r"(\d+:)?\d?\d:\d\d", said)
    parts = [int(part) for part in said.split(":")]
    assert all(part < 60 for part in parts[1:])
    assert sum(part * 60**k for k, part in enumerate(reversed(parts))) == round(seconds)


@pytest.mark.parametrize(("seconds", "said"), [(0, "0:00"), (59.6, "1:00"), (3599.7, "1:00:00"), (3661, "1:01:01")])
def test_a_clock_carries(seconds: float, said: str) -> None:
    assert clock(seconds) == said


@given(
    measured=st.dictionaries(st.sampled_from(SOMETIMES), st.floats(0, 1e3) | st.just(math.nan), max_size=5),
    branches=st.booleans(),
    epochs=st.sampled_from([3.0, 70.0, 2.5]),
)
def test_line_has_all_columns(measured: dict[str, float], branches: bool, epochs: float) -> None:
    shares = {"branch_agree": 0.5, "branch_lower": 0.25, "branch_upper": 0.25} if branches else {}
    line = epoch_line(ALWAYS | measured | shares, epochs, "0:10")
    assert "\n" not in line
    missing = len(SOMETIMES) - len(measured) + (not branches)
    assert len(re.findall(r"(?<!\S)-(?!\S)", line)) == missing
    assert line.split()[:3] == [f"3/{epochs:g}", "full", "0.3000"]
    assert line.endswith("0:10")
    assert "10.00%" in line


@pytest.mark.parametrize("phase", ["natural", "adversarial", "ramp", "full"])
def test_columns_are_aligned_with_the_header(phase: str) -> None:
    metrics = ALWAYS | {"phase": phase} | dict.fromkeys(SOMETIMES, 12.5)
    metrics |= {"branch_agree": 1.0, "branch_lower": 0.0, "branch_upper": 0.0}
    full, empty = epoch_line(metrics, 70, "1:00"), epoch_line(ALWAYS | {"phase": phase}, 70, "1:00")
    assert len(full) == len(empty)
    assert abs(len(full) - len(HEADER)) <= 1
    for name, number in (("L_lower", "12.500"), ("verified", "10.00%"), ("left", "1:00")):
        end = HEADER.index(name) + len(name)
        assert abs(full.index(number) + len(number) - end) <= 2


@pytest.mark.parametrize("below", [None, torch.tensor(0.25)])
@pytest.mark.parametrize("above", [None, torch.tensor(1.5)])
def test_losses_of_a_step(below: torch.Tensor | None, above: torch.Tensor | None) -> None:
    weights = Weights(0.5, 0.5, 0.0, "start", math.nan) if below is not None and above is not None else None
    said = losses(Step("full", 0.1, below, above, None, weights))
    assert ("L_lower 0.250" in said) == (below is not None)
    assert ("L_upper 1.500" in said) == (above is not None)
    assert ("start" in said) == (weights is not None)


def run(console: Console) -> str:
    x, y = torch.rand(60, 1, 3, 3), torch.arange(60) % 2
    problem = data.from_tensors(x, y, x, y, validation=20)
    options = {"epochs": 3, "warmup_natural": 1, "warmup_adversarial": 0, "ramp": 1, "batch_size": 20}
    train(nets.build("FC 3", (1, 3, 3), 2), problem, show=Live(console), **options)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_line_per_epoch_without_a_terminal() -> None:
    note, head, *lines = run(Console(file=io.StringIO(), width=40)).splitlines()
    assert note == "the training starts from the weights of the network"
    assert head == HEADER
    assert [line.split()[0] for line in lines] == ["1/3", "2/3", "3/3"]


def test_bar_on_a_terminal_leaves_complete_lines() -> None:
    said = run(Console(file=io.StringIO(), width=160, force_terminal=True))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).replace("\r", "\n")
    for epoch in (1, 2, 3):
        assert len(re.findall(rf"^ *{epoch}/3 .*%", plain, re.MULTILINE)) == 1


def test_silent_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = torch.rand(60, 1, 3, 3), torch.arange(60) % 2
    problem = data.from_tensors(x, y, x, y, validation=20)
    train(nets.build("FC 3", (1, 3, 3), 2), problem, show=Silent(), epochs=3, ramp=1, batch_size=20)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [False, True])
def test_fast_work_has_no_progress(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with Counting("certifying", console) as counting:
        counting.progress(0.1, 5, 10)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_slow_work_prints_progress_lines() -> None:
    console = Console(file=io.StringIO(), width=20)
    with Counting("certifying", console) as counting:
        counting.last_line -= 100
        counting.progress(0.1, 5, 1000)
        counting.progress(0.1, 6, 1000)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "certifying, eps 0.1: 5 of 1000 images\n"
