"""`advibp train --log` and the messages that the library logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from advibp import cli
from advibp.storage import checkpoint

TINY = ["--limit", "100", "--validation", "50", "--batch-size", "50", "--epochs", "2", "--method", "standard"]


def test_train_logs_to_mlflow_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path}/mlflow.db")
    typed = ["train", "mnist", "FC 4", "--out", str(tmp_path / "run"), *TINY, "--log", "mlflow"]
    assert cli.main(typed) == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    (logged,) = client.search_runs([client.get_experiment_by_name("advibp").experiment_id])
    points = client.get_metric_history(logged.info.run_id, "standard_error")
    assert [point.step for point in points] == [1, 2]
    with pytest.raises(SystemExit) as stopped:
        cli.main([*typed[:-1], "tensorbord"])
    assert stopped.value.code == 2


def test_logged_messages_are_printed_once_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert cli.main(["train", "mnist", "FC 4", "--out", str(out), *TINY]) == 0
    newest, *_ = checkpoint.newest(out / "checkpoints")
    newest.write_bytes(b"damaged")
    capsys.readouterr()
    assert cli.main(["train", "--resume", "--out", str(out)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told if "skipped" in line] == ["skipped"]
    assert logging.getLogger("advibp").handlers == []
