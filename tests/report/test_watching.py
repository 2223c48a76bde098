"""Watching a run while it trains, by its folder alone."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import call, halves
from hypothesis import given
from hypothesis import strategies as st

from advibp import Recipe, data, nets, train
from advibp.cli import watch_command
from advibp.errors import UserError
from advibp.report.watching import BLOCKS, Remaining, Watched, is_training, phases, remaining_after, sparkline
from advibp.runs.run_files import RunFiles
from advibp.runs.training_display import HEADER, Silent
from advibp.storage import checkpoint

torch.set_num_threads(1)

OPTIONS = "--epochs 4 --warmup-natural 1 --warmup-adversarial 0.5 --ramp 1 --eps 0.1 --lr 0.02 --batch-size 20"


def run_of(*history: dict[str, Any], **recipe: Any) -> RunFiles:
    return RunFiles(Path("run"), {"epochs": 10.0, **recipe}, None, list(history))


def epoch(number: int, phase: str, seconds: float) -> dict[str, Any]:
    errors = {"standard_error": 0.1, "verified_error": 0.9}
    return {"epoch": number, "phase": phase, "eps": 0.1, "seconds": seconds, **errors}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("watched")
    x, y = halves(150)
    np.savez(here / "data.npz", x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
    assert call(f"train {here}/data.npz 'FC 8' {OPTIONS} --validation 30 --threads 1 --out {here}/run") == 0
    return here / "run"


@pytest.fixture
def stopped(finished: Path, tmp_path: Path) -> Path:
    """The same run, as a kill after its second epoch leaves it."""
    folder = tmp_path / "stopped"
    folder.mkdir()
    shutil.copy(finished / "recipe.yaml", folder)
    lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    return folder


def age(folder: Path, seconds: float) -> None:
    for file in folder.iterdir():
        os.utime(file, (time.time() - seconds,) * 2)


def flat(text: str) -> str:
    return " ".join(text.split())


@given(
    epochs=st.integers(1, 12),
    natural=st.floats(0, 3),
    adversarial=st.floats(0, 3),
    ramp=st.floats(0, 3),
    steps=st.integers(1, 7),
)
def test_phases_are_those_that_training_writes_down(
    epochs: int, natural: float, adversarial: float, ramp: float, steps: int
) -> None:
    """An epoch is called after the phase of its last step."""
    if natural + adversarial + ramp > epochs:
        return
    spans = {"warmup_natural": natural, "warmup_adversarial": adversarial, "ramp": ramp}
    line = Recipe.of({"epochs": float(epochs), **spans}).timeline()
    course = phases(run_of(epochs=float(epochs), **spans))
    for number in range(1, epochs + 1):
        named = next(phase.name for phase in course if number <= phase.ends)
        last_step = number - 1 / steps
        later = [line.phase(last_step), line.phase(number - 1e-6)]  # the phase may begin after the last step
        assert named in later


def test_phases_of_shares_and_stages() -> None:
    told = phases(
        run_of(epochs=20.0, warmup_natural=1.0, warmup_adversarial="10%", ramp="35%", stages=2, stage_epochs=2.5)
    )
    assert [(p.name, p.ends) for p in told] == [
        ("natural", 1),
        ("adversarial", 3),
        ("ramp", 10),
        ("full", 20),
        ("latent", 26),
    ]


def test_the_number_of_stages_for_all_layers_grows() -> None:
    """How many layers there are is the network's to say."""
    history = [epoch(k, "full", 1.0) for k in range(1, 11)]
    history += [{**epoch(k, "latent", 1.0), "stage": k - 10} for k in (11, 12)]
    run = run_of(*history, stages="all", stage_epochs=2.0, warmup_natural=1.0)
    assert phases(run)[-1].ends == 14
    assert remaining_after(run, run.history) == Remaining(2.0, least=True)


def test_the_time_left_is_that_of_each_phase() -> None:
    recipe = {"warmup_natural": 2.0, "warmup_adversarial": 0.0, "ramp": 3.0}
    history = [epoch(1, "natural", 1.0), epoch(2, "natural", 1.0)]
    assert remaining_after(run_of(**recipe), []) is None
    # What a ramp takes is not known yet.
    assert remaining_after(run_of(**recipe), history) == Remaining(8.0, least=True)
    history += [epoch(3, "ramp", 10.0), epoch(4, "ramp", 20.0)]
    assert remaining_after(run_of(**recipe), history) == Remaining(6 * 15.0, least=False)
    history += [epoch(5, "ramp", 15.0), epoch(6, "full", 5.0)]
    assert remaining_after(run_of(**recipe), history) == Remaining(4 * 5.0, least=False)
    history += [epoch(k, "full", 5.0) for k in range(7, 11)]
    assert remaining_after(run_of(**recipe), history) == Remaining(0.0, least=False)


@given(
    values=st.lists(st.none() | st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf]), max_size=200),
    width=st.integers(1, 60),
)
def test_a_sparkline_fits_and_ends_where_the_values_do(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    finite = [v for v in values if v is not None and math.isfinite(v)]
    assert len(line) == (min(width, len(values)) if finite else 0)
    assert set(line) <= {*BLOCKS, " "}
    if len(values) <= width and len(set(finite)) > 1 and max(finite) - min(finite) > 1e-6:
        assert line[values.index(max(finite))] == BLOCKS[-1]
        assert line[values.index(min(finite))] == BLOCKS[0]


def test_a_growing_curve_grows() -> None:
    line = sparkline([float(k) for k in range(100)], 16)
    assert list(line) == sorted(line)
    assert (line[0], line[-1]) == (BLOCKS[0], BLOCKS[-1])


def test_a_folder_that_a_process_trains_in_is_held(stopped: Path) -> None:
    age(stopped, 3600)
    run = Watched(stopped)
    assert run.late()
    assert run.is_stalled()
    with checkpoint.lock(stopped, "training", ()):
        assert is_training(stopped)
        assert run.late()
        assert not run.is_stalled()
    assert not is_training(stopped)


def test_a_run_is_not_late_at_first_or_when_finished(stopped: Path, finished: Path) -> None:
    assert not Watched(stopped).late()
    done = Watched(finished)
    assert done.finished
    done.waiting = lambda: 1e6  # type: ignore[method-assign]
    assert not done.late()


def test_new_epochs_are_read(stopped: Path, finished: Path) -> None:
    run, whole = Watched(stopped), Watched(finished)
    assert (run.done, run.total) == (2, 4)
    assert run.phase == whole.history[2]["phase"]
    lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write(lines[2] + lines[3][:20])  # half a line is no epoch yet
    run.look()
    assert run.done == 3
    assert not run.finished
    (stopped / "metrics.jsonl").write_text("".join(lines))
    shutil.copy(finished / "summary.json", stopped)
    run.look()
    assert (run.done, run.finished) == (4, True)


def test_once_prints_the_state_of_a_run(stopped: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"watch {finished} {stopped} --once") == 0
    told = flat(capsys.readouterr().out)
    assert f"next: advibp certify {finished} --eps 0.1" in told
    assert "finished epoch 4/4" in told
    assert "full epoch 2/4" in told  # the third goes on, which ends at full eps
    assert "--resume" not in told
    (stopped / "metrics.jsonl").unlink()
    assert call(f"watch {stopped} --once") == 0
    assert "natural epoch 0/4" in flat(capsys.readouterr().out)  # the first goes on
    age(stopped, 3600)
    assert call(f"watch {stopped} --once") == 0
    assert f"advibp train --resume --out {stopped}" in flat(capsys.readouterr().out)


def test_a_run_without_weights_is_not_to_be_certified(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("recipe.yaml", "metrics.jsonl", "summary.json"):
        shutil.copy(finished / name, tmp_path)
    assert call(f"watch {tmp_path}") == 0
    told = capsys.readouterr().out
    assert "weights were not kept" in told
    assert "certify" not in told


def test_lines_follow_a_training_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network of the Python interface is trained in a thread while the command watches it."""
    monkeypatch.setattr(watch_command, "EVERY", 0.01)
    x, y = halves(150)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
    images = data.load(str(tmp_path / "data.npz"), validation=30)
    net = nets.build("FC 8", images.input_shape, images.classes, seed=0)
    options: dict[str, Any] = {"epochs": 6, "warmup_natural": 1, "warmup_adversarial": 1, "ramp": 1, "threads": 1}
    out = tmp_path / "run"
    training = threading.Thread(target=train, args=(net, images), kwargs=options | {"out": out, "show": Silent()})
    training.start()
    while not (out / "recipe.yaml").exists():
        time.sleep(0.005)
    assert call(f"watch {out}") == 0
    training.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == HEADER
    assert [line.split()[0] for line in lines[2:-1]] == [f"{k}/6" for k in range(1, 7)]
    # The recipe has the text of a network that `nets.build` has built.
    assert lines[-1] == f"finished; next: advibp certify {out} --eps 0.3"


def test_lines_of_several_runs_have_names(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(finished, tmp_path / "other")
    assert call(f"watch {finished} {tmp_path}/other") == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("run", "other"):
        mine = [line for line in lines if line.startswith(f"{name}: ")]
        assert len(mine) == 1 + 4 + 1  # headline, epochs, ending


def read(terminal: int) -> bytes:
    """What a program writes next; b"" when it has ended."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


@pytest.mark.skipif(os.name == "nt", reason="no terminals of this kind")
def test_a_terminal_shows_a_live_view_and_ctrl_c_ends_it_quietly(stopped: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "advibp.cli", "watch", str(stopped)]
    child = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    patience = threading.Timer(240, child.kill)
    patience.start()
    shown = b""
    while shown.count(b"verified") < 2 and (more := read(ours)):  # drawn, and drawn again
        shown += more
    child.send_signal(signal.SIGINT)
    while more := read(ours):
        shown += more
    code, complaint = child.wait(), child.stderr.read() if child.stderr else b""
    patience.cancel()
    os.close(ours)
    assert (code, complaint) == (130, b"")
    text = shown.decode()
    assert "epoch 2/4" in text
    assert any(block in text for block in BLOCKS)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", json.dumps({"epoch": 1, "phase": "ramp"}) + "\n"),
        ("metrics.jsonl", "[]\n"),
        ("metrics.jsonl", json.dumps(epoch(1, "ramp", 1.0) | {"seconds": "long"}) + "\n"),
        ("recipe.yaml", "epochs: many"),
        ("recipe.yaml", "epochs: .nan"),
        ("recipe.yaml", "epochs: .inf"),
        ("summary.json", "{"),
    ],
)
def test_damaged_files_are_reported_in_one_sentence(
    stopped: Path, file: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (stopped / file).write_text(content)
    assert call(f"watch {stopped} --once") == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {stopped / file} is damaged")
    assert told.err.count("\n") == 1


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        Watched(tmp_path)
