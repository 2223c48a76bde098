"""Ctrl-C and SIGTERM: the step is finished and saved, the way to go on is printed, and going on changes nothing."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from advibp import Run, UserError, cli, data, nets, train
from advibp.data import Data
from advibp.runs import training_display
from advibp.runs.stopping import Stopped, StopRequest
from advibp.runs.training_display import Silent
from advibp.training import Training

torch.set_num_threads(1)

OPTIONS: dict[str, Any] = {"epochs": 4, "warmup_natural": 1, "warmup_adversarial": 1, "ramp": 1, "batch_size": 10}
OPTIONS |= {"eps": 0.1, "lr": 0.01}


def images() -> Data:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(70, 1, 4, 4, generator=generator), torch.randint(0, 2, (70,), generator=generator)
    return data.from_tensors(x, y, x[:20], y[:20], validation=20)


class Ask(Silent):
    """Sends a signal to this process after a step."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.at = number, step

    def step(self, training: Training, step: Any) -> None:
        if training.steps == self.at:
            os.kill(os.getpid(), self.number)


def run(out: Path | None, show: Silent, resume: bool = False) -> Run:
    return train(nets.build("FC 6", (1, 4, 4), 2, seed=1), images(), out=out, show=show, resume=resume, **OPTIONS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [1, 4, 5, 7, 18])
def test_stopped_run_continues_as_if_undisturbed(number: int, step: int, tmp_path: Path) -> None:
    """In the first epoch, at the last and first step of an epoch, and in the joint phase."""
    handlers = [signal.getsignal(n) for n in StopRequest.SIGNALS]
    with pytest.raises(Stopped, match=r"continue with: advibp.train\(..., out='.*run', resume=True\)") as stopped:
        run(tmp_path / "run", Ask(number, step))
    assert stopped.value.signal == number
    assert [signal.getsignal(n) for n in StopRequest.SIGNALS] == handlers
    one, two = run(tmp_path / "run", Silent(), resume=True), run(None, Silent())
    a, b = one.net.state_dict(), two.net.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
    histories = [[{k: v for k, v in m.items() if k != "seconds"} for m in r.history] for r in (one, two)]
    assert histories[0] == histories[1]


def test_nothing_of_the_step_is_lost(tmp_path: Path) -> None:
    class Count(Silent):
        steps = 0

        def step(self, training: Training, step: Any) -> None:
            self.steps += 1

    with pytest.raises(Stopped):
        run(tmp_path / "run", Ask(signal.SIGINT, 7))
    count = Count()
    run(tmp_path / "run", count, resume=True)
    assert count.steps == 20 - 7


def test_signal_at_the_last_step(tmp_path: Path) -> None:
    assert run(tmp_path / "run", Ask(signal.SIGTERM, 20)).summary["epochs"] == 4


def test_message_without_a_folder() -> None:
    with pytest.raises(Stopped, match="nothing was saved"):
        run(None, Ask(signal.SIGINT, 3))


def test_second_signal_is_not_caught() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_signals_are_not_caught_in_other_threads() -> None:
    found: list[object] = []

    def inside() -> None:
        with StopRequest() as stop:
            found.append(stop.signal)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [None]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("own", [False, True])
def test_on_the_command_line(
    own: bool,
    number: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    d = images()
    np.savez(tmp_path / "d.npz", x_train=d.train.x[:, 0], y_train=d.train.y, x_test=d.test.x[:, 0], y_test=d.test.y)
    options = [f"--{k.replace('_', '-')}={v}" for k, v in OPTIONS.items()]
    out, net = str(tmp_path / "a run"), "FC 6"
    if own:
        (tmp_path / "own.py").write_text(
            "from torch import nn\nmake = lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2))\n"
        )
        net = f"{tmp_path}/own.py:make"
    command = ["train", str(tmp_path / "d.npz"), net, "--validation=10", *options, "--out", out]
    step = training_display.Live.step
    monkeypatch.setattr(training_display.Live, "step", Ask(number, 3).step)
    assert cli.main(command) == code
    told = capsys.readouterr().err.strip()
    assert told.startswith("stopped in epoch 1, after step 3 of 4, and saved; continue with: advibp train ")
    assert told.endswith(f"--resume --out '{out}'")
    again = shlex.split(told.partition("continue with: advibp ")[2])
    monkeypatch.setattr(training_display.Live, "step", step)
    assert cli.main(again) == 0


def test_signal_before_the_first_step(tmp_path: Path) -> None:
    class AskFirst(Silent):
        def start(self, training: Training, history: list[dict[str, Any]]) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="in epoch 1, after step 0"):
        run(tmp_path / "run", AskFirst())
    assert run(tmp_path / "run", Silent(), resume=True).summary["epochs"] == 4


def test_a_folder_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    class Meanwhile(Silent):
        told = ""

        def step(self, training: Training, step: Any) -> None:
            if training.steps == 2:
                with pytest.raises(UserError) as refused:
                    run(tmp_path / "run", Silent(), resume=True)
                self.told = str(refused.value)

    show = Meanwhile()
    run(tmp_path / "run", show)
    assert "another process is training there" in show.told
    run(tmp_path / "run", Silent(), resume=True)


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    run(tmp_path / "run", Silent())
    left = [
        tmp_path / "run" / ".metrics.jsonl.12345",
        tmp_path / "run" / "checkpoints" / ".step-000000001.safetensors.7",
    ]
    kept = [tmp_path / "run" / ".notes", tmp_path / "run" / "checkpoints" / ".DS_Store"]
    for file in (*left, *kept):
        file.write_text("x")
    run(tmp_path / "run", Silent(), resume=True)
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in kept)
