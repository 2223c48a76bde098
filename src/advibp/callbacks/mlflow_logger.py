"""Log trainings to MLflow."""

from __future__ import annotations

import time
from typing import Any

from advibp.callbacks.run_logger import RunLogger
from advibp.display.optional_packages import optional


class MlflowLogger(RunLogger):
    """Logs a training to MLflow: the recipe as parameters, the metrics of each epoch, the final errors, certificates.

    `pip install 'advibp[mlflow]'` installs it. MLflow itself may send usage statistics to its makers; the environment
    variable MLFLOW_DISABLE_TELEMETRY=true turns that off. With `out`, a resumed training continues its MLflow run.

    Args:
        experiment: name of the experiment; it is created if it does not exist. Default: "advibp".
        name: name of the run. Default: MLflow chooses one.
        tracking_uri: a server, or a local database such as "sqlite:///mlflow.db". Default: MLFLOW_TRACKING_URI, or
            MLflow's default.

    Examples:
        >>> import advibp
        >>> logger = advibp.callbacks.MlflowLogger(tracking_uri="sqlite:///mlflow.db")
        >>> # run = advibp.train(net, data, eps=0.1, out="runs/first", callbacks=[logger])
        >>> # advibp.certify(run.net, data.test, eps=0.1, callbacks=[logger])
    """

    service = "mlflow"

    def __init__(self, experiment: str = "advibp", *, name: str | None = None, tracking_uri: str | None = None) -> None:
        super().__init__()
        self.experiment, self.name, self.tracking_uri = experiment, name, tracking_uri
        self._client: Any = None

    def _open(self, facts: dict[str, Any], known: str | None) -> str:
        mlflow = optional("mlflow", "MlflowLogger", extra="mlflow")
        self._client = mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        if known is not None and self._exists(known):
            self._client.update_run(known, status="RUNNING")
            return known
        experiment = self._client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self.experiment)
        run = str(self._client.create_run(number, run_name=self.name).info.run_id)
        params = [mlflow.entities.Param(key, str(value)[:6000]) for key, value in facts["recipe"].items()]
        self._client.log_batch(run, params=params)
        return run

    def _exists(self, run: str) -> bool:
        """Whether this store has the run. A run may be resumed with another store."""
        try:
            return bool(self._client.get_run(run).info.lifecycle_stage == "active")
        except Exception:  # depends on the store
            return False

    def _log_metrics(self, metrics: dict[str, float], epoch: int) -> None:
        entities = optional("mlflow", "MlflowLogger", extra="mlflow").entities
        now = int(1000 * time.time())
        self._client.log_batch(self.id, metrics=[entities.Metric(k, v, now, epoch) for k, v in metrics.items()])

    def _close(self, results: dict[str, Any], status: str) -> None:
        if results:
            self._log_metrics(results, self._epoch)
        self._client.set_terminated(self.id, "FINISHED" if status == "finished" else "FAILED")

    def _log_results(self, results: dict[str, float]) -> None:
        self._log_metrics(results, self._epoch)
