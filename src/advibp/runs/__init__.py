"""Runs: train into a folder, resume, open, sweep, and display progress."""

from advibp.runs.opening import first_net, open_run, open_with_facts
from advibp.runs.run import Run
from advibp.runs.training_runs import train

__all__ = ["Run", "first_net", "open_run", "open_with_facts", "train"]
