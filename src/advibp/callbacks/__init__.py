"""Callbacks of `train` and `certify`, and loggers for Weights & Biases and MLflow."""

from advibp.callbacks.callback import EVENTS, Callback, CallbackGroup, StopTraining
from advibp.callbacks.mlflow_logger import MlflowLogger
from advibp.callbacks.wandb_logger import WandbLogger

#: Loggers by the name that `advibp train --log` takes.
LOGGERS: dict[str, type[Callback]] = {"mlflow": MlflowLogger, "wandb": WandbLogger}

__all__ = ["EVENTS", "LOGGERS", "Callback", "CallbackGroup", "MlflowLogger", "StopTraining", "WandbLogger"]
