"""Trainings are logged to a real MLflow database, without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from callback_runs import tiny_data, tiny_train

import advibp
from advibp.callbacks import Callback, MlflowLogger, StopTraining
from advibp.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")


class StopAfterTwo(Callback):
    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        if metrics["epoch"] == 2:
            raise StopTraining


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("DO_NOT_TRACK", "true")
        yield f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def test_a_resumed_training_continues_its_run(uri: str, tmp_path: Path) -> None:
    import mlflow

    tiny_train(tmp_path / "run", [MlflowLogger("digits", tracking_uri=uri), StopAfterTwo()])
    logger = MlflowLogger("digits", tracking_uri=uri)
    run = tiny_train(tmp_path / "run", [logger], resume=True)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (logged,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert logged.info.run_id == logger.id
    assert logged.info.status == "FINISHED"
    assert logged.data.params["eps"] == "0.05"
    points = client.get_metric_history(logger.id, "verified_error")
    assert [(p.step, p.value) for p in points] == [(m["epoch"], m["verified_error"]) for m in run.history]
    advibp.certify(run.net, tiny_data().test, 0.01, callbacks=[logger])
    metrics = client.get_run(logger.id).data.metrics
    assert 0 <= metrics["certify/eps-0.01/verified_error"] <= 1


def test_epochs_that_were_not_logged_are_logged_later(uri: str, tmp_path: Path) -> None:
    import mlflow

    tiny_train(tmp_path / "run", [StopAfterTwo()])
    logger = MlflowLogger("later", tracking_uri=uri)
    tiny_train(tmp_path / "run", [logger], resume=True)
    history = mlflow.MlflowClient(tracking_uri=uri).get_metric_history(logger.id, "eps")
    assert [p.step for p in history] == [1, 2, 3, 4]


def test_failures_of_the_service_do_not_end_the_training(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class DeletesItsRun(MlflowLogger):
        def _log_metrics(self, metrics: dict[str, float], epoch: int) -> None:
            if epoch == 2:
                self._client.delete_run(self.id)
            super()._log_metrics(metrics, epoch)

    run = tiny_train(tmp_path / "run", [DeletesItsRun("fails", tracking_uri=uri)])
    assert len(run.history) == 4
    assert any("mlflow did not log epoch 2: " in message for message in caplog.messages)


def test_a_damaged_id_starts_a_new_logged_run(uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = MlflowLogger("damaged", tracking_uri=uri)
    tiny_train(tmp_path / "run", [logger, StopAfterTwo()])
    (tmp_path / "run" / "mlflow.json").write_text('{"id": [')
    again = MlflowLogger("damaged", tracking_uri=uri)
    tiny_train(tmp_path / "run", [again], resume=True)
    assert again.id != logger.id
    assert any("mlflow.json is damaged; a new run is logged" in message for message in caplog.messages)


def test_bad_settings_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"mlflow can't log this run: .*; correct its settings"):
        tiny_train(None, [MlflowLogger(tracking_uri="nowhere://x")])
    with pytest.raises(UserError, match="MlflowLogger has no run to add certificates to; pass it to train first"):
        advibp.certify(tiny_train().net, tiny_data().test, 0.01, callbacks=[MlflowLogger()])
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"needs mlflow, which is not installed; run pip install 'advibp\[mlflow\]'"):
        tiny_train(None, [MlflowLogger()])
