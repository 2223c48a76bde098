"""Runs: train into a folder, resume, open, sweep, and display progress."""

from advibp.runs.training_runs import Run, first_net, open_run, open_with_facts, train

__all__ = ["Run", "first_net", "open_run", "open_with_facts", "train"]
