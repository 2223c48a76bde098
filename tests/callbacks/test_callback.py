"""Callbacks get plain data, may stop a training, and can't lose a checkpoint."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from callback_runs import tiny_data, tiny_net, tiny_train

import advibp
from advibp.callbacks import EVENTS, Callback, StopTraining
from advibp.errors import UserError
from advibp.runs.stopping import Stopped

pytestmark = pytest.mark.filterwarnings("ignore::advibp.CollapseWarning")


class Recorder:
    """Records every event; it does not inherit from Callback."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS:
            raise AttributeError(name)
        return lambda facts: self.events.append((name, facts))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *EVENTS]

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


class At(Callback):
    """Raises an exception in an epoch."""

    def __init__(self, epoch: int, error: BaseException) -> None:
        self.epoch, self.error = epoch, error

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        if metrics["epoch"] == self.epoch:
            raise self.error


def weights(run: advibp.Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.net.parameters()])


def test_events_come_in_order_with_plain_data(tmp_path: Path) -> None:
    recorder = Recorder()
    run = tiny_train(tmp_path / "run", [recorder])
    assert recorder.names() == ["on_train_start", *["on_epoch_end"] * 4, "on_train_end"]
    assert all(json.loads(json.dumps(facts)) == facts for _, facts in recorder.events)
    start = recorder.events[0][1]
    assert start["recipe"]["eps"] == 0.05
    assert (start["resumed"], start["epoch"], start["epochs"], start["steps_per_epoch"]) == (False, 0, 4, 5)
    assert start["out"] == str(tmp_path / "run")
    assert [facts for name, facts in recorder.events if name == "on_epoch_end"] == run.history
    assert recorder.events[-1][1] == run.summary


def test_stages_are_announced() -> None:
    recorder = Recorder()
    tiny_train(None, [recorder], method="advibp", stages=1, stage_epochs=1)
    stages = [facts["stage"] for name, facts in recorder.events if name == "on_stage_end"]
    assert stages == [0, 1]


def test_callbacks_do_not_change_the_training() -> None:
    class Meddler(Callback):
        def on_epoch_end(self, metrics: dict[str, Any]) -> None:
            metrics.clear()
            torch.rand(3)

    assert torch.equal(weights(tiny_train(None, [Meddler(), Meddler()])), weights(tiny_train()))


def test_a_callback_stops_the_training_and_it_can_be_resumed(tmp_path: Path) -> None:
    recorder = Recorder()
    run = tiny_train(tmp_path / "run", [At(2, StopTraining("enough")), recorder])
    assert run.summary["stopped"] == {"epoch": 2, "reason": "enough"}
    assert len(run.history) == 2
    assert recorder.names() == ["on_train_start", "on_epoch_end", "on_epoch_end", "on_train_end"]
    opened = advibp.open_run(tmp_path / "run", tiny_net())
    assert torch.equal(weights(opened), weights(run))
    again = Recorder()
    resumed = tiny_train(tmp_path / "run", [again], resume=True)
    assert again.events[0][1]["resumed"]
    assert [m["epoch"] for m in again.events[0][1]["history"]] == [1, 2]
    assert [facts["epoch"] for name, facts in again.events if name == "on_epoch_end"] == [3, 4]
    assert "stopped" not in resumed.summary
    assert torch.equal(weights(resumed), weights(tiny_train()))


def test_the_best_weights_are_kept_by_a_stop(tmp_path: Path) -> None:
    run = tiny_train(tmp_path / "run", [At(3, StopTraining())], select="best")
    assert run.summary["validation"]["epoch"] == 3
    resumed = tiny_train(tmp_path / "run", resume=True, select="best")
    assert torch.equal(weights(resumed), weights(tiny_train(select="best")))


def test_a_stop_before_the_first_step_and_after_the_last(tmp_path: Path) -> None:
    class Never(Callback):
        def on_train_start(self, facts: dict[str, Any]) -> None:
            raise StopTraining

    run = tiny_train(tmp_path / "run", [Never()])
    assert (run.history, run.summary["stopped"]["epoch"]) == ([], 0)
    assert torch.equal(weights(tiny_train(tmp_path / "run", resume=True)), weights(tiny_train()))
    assert "stopped" not in tiny_train(None, [At(4, StopTraining())]).summary


def test_an_exception_does_not_lose_the_checkpoint(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError) as caught:
        tiny_train(tmp_path / "run", [At(3, ZeroDivisionError("oops")), recorder])
    assert caught.value.__notes__ == ["raised by the callback At in on_epoch_end"]
    assert recorder.events[-1] == ("on_train_interrupted", {"reason": "oops", "epoch": 3})
    again = Recorder()
    resumed = tiny_train(tmp_path / "run", [again], resume=True)
    assert [facts["epoch"] for name, facts in again.events if name == "on_epoch_end"] == [4]
    assert torch.equal(weights(resumed), weights(tiny_train()))


def test_a_signal_is_announced_and_a_failing_callback_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Interrupts(Callback):
        def on_epoch_end(self, metrics: dict[str, Any]) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def on_train_interrupted(self, facts: dict[str, Any]) -> None:
            raise ValueError("broken")

    recorder = Recorder()
    with pytest.raises(Stopped):
        tiny_train(tmp_path / "run", [Interrupts(), recorder])
    assert recorder.names()[-1] == "on_train_interrupted"
    assert "Interrupts failed in on_train_interrupted: broken" in caplog.messages


def test_certify_has_events_too(tmp_path: Path) -> None:
    recorder, net, data = Recorder(), tiny_net(), tiny_data()
    advibp.certify(net, data.test, [0.01, 0.02], out=tmp_path / "certify", callbacks=[recorder])
    assert recorder.names() == ["on_certify_start", "on_certify_end"]
    start, end = (facts for _, facts in recorder.events)
    assert (start["images"], start["eps"], start["by"]) == (60, [0.01, 0.02], ["ibp"])
    assert end == json.loads((tmp_path / "certify" / "summary.json").read_text())


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (Recorder(), r"callbacks is Recorder, but must be a list of callbacks; write \[callback\]"),
        ([Recorder], r"Recorder is a class; give an object of it: Recorder\(\)"),
        ([3], "int is no callback: it has no method of on_train_start"),
        ([type("Typo", (), {"on_epoch_ends": print})()], "Typo.on_epoch_ends is no event of a callback; choose from"),
    ],
)
def test_what_is_no_callback_is_refused(callbacks: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_train(None, callbacks)
    with pytest.raises(UserError, match=message):
        advibp.certify(tiny_net(), tiny_data().test, 0.1, callbacks=callbacks)
