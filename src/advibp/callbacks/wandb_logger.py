"""Log trainings to Weights & Biases."""

from __future__ import annotations

from typing import Any

from advibp.callbacks.run_logger import RunLogger
from advibp.display.optional_packages import optional


class WandbLogger(RunLogger):
    """Logs a training to Weights & Biases: the recipe, the metrics of each epoch, the final errors, certificates.

    `pip install 'advibp[wandb]'` installs it. With `out`, a resumed training continues the run of the same id. In
    offline mode every start writes a folder of its own with the same id; `wandb sync` joins them.

    Args:
        project: name of the project. Default: "advibp".
        name: name of the run. Default: W&B chooses one.
        mode: "online", "offline" or "disabled". Default: WANDB_MODE, or W&B's default.
        options: further arguments of `wandb.init`, such as entity="team", group="ablation" or dir="logs".

    Examples:
        >>> import advibp
        >>> logger = advibp.callbacks.WandbLogger(project="robust-digits", mode="offline")
        >>> # run = advibp.train(net, data, eps=0.1, out="runs/first", callbacks=[logger])
    """

    service = "wandb"

    def __init__(
        self, project: str = "advibp", *, name: str | None = None, mode: str | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.options = {"project": project, "name": name, "mode": mode, **options}
        self._run: Any = None

    def _open(self, facts: dict[str, Any], known: str | None) -> str:
        self._run = self._init(known, config=facts["recipe"])
        return str(self._run.id)

    def _init(self, known: str | None, **more: Any) -> Any:
        wandb = optional("wandb", "WandbLogger", extra="wandb")
        options = {**self.options, **more}
        options.setdefault("settings", wandb.Settings(console="off"))  # W&B would copy everything that is printed
        return wandb.init(id=known, resume="allow" if known else None, reinit="create_new", **options)

    def _log_metrics(self, metrics: dict[str, float], epoch: int) -> None:
        self._run.log(metrics, step=epoch)

    def _close(self, results: dict[str, Any], status: str) -> None:
        self._run.summary.update(results)
        self._run.finish(exit_code=0 if status == "finished" else 1)

    def _log_results(self, results: dict[str, float]) -> None:
        self._run = self._init(self.id)
        self._close(results, "finished")
