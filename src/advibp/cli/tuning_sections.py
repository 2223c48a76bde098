"""The table and the chart of a tuning."""

from __future__ import annotations

from collections.abc import Sequence

from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.runs.tuning import TrialResult, Tuning


def tuning_sections(tuning: Tuning, command: str = "") -> list[Section]:
    """Return the Pareto front and all trials as tables, and the trials as a chart if there are two objectives.

    Args:
        tuning: the tuning.
        command: the command that produced it.
    """
    names = list(next((t.values for t in tuning.trials if t.values), {}))
    note = "Accuracies on validation images, in percent. The test set was not loaded."
    sections: list[Section] = [
        TableSection(
            title="Pareto front" if len(names) > 1 else "Best trial",
            head=trial_head(tuning.trials),
            rows=[trial_cells(trial, tuning.trials) for trial in tuning.front],
            notes=[note],
            command=command,
        )
    ]
    if len(names) > 1:
        sections.append(
            ChartSection(
                title="Trials",
                x=f"{names[0]} accuracy, %",
                y=f"{names[1]} accuracy, %",
                series=_series(tuning, *names),
                kind="points",
                notes=[note],
            )
        )
    rows = [trial_cells(trial, tuning.trials) for trial in tuning.trials]
    sections.append(TableSection(title="All trials", head=trial_head(tuning.trials), rows=rows))
    return sections


def _series(tuning: Tuning, first: str, second: str) -> list[Series]:
    """Return one series of points per method, and one for the front."""
    done = [trial for trial in tuning.trials if trial.values]
    groups = {str(trial.params.get("method", "trials")): None for trial in done}
    parts = {name: [t for t in done if str(t.params.get("method", "trials")) == name] for name in groups}
    front = sorted(tuning.front, key=lambda t: t.values[first])
    return [
        Series(name=name, x=[t.values[first] for t in trials], y=[t.values[second] for t in trials])
        for name, trials in {**parts, "Pareto front": front}.items()
    ]


def trial_head(trials: Sequence[TrialResult]) -> list[str]:
    """Return the names of the columns: objectives, searched keys, state and minutes."""
    objectives = dict.fromkeys(name for trial in trials for name in trial.values)
    return ["trial", *objectives, *_keys(trials), "state", "minutes"]


def trial_cells(trial: TrialResult, trials: Sequence[TrialResult]) -> list[str]:
    """Return the row of a trial, in the columns of `trial_head`."""
    objectives = dict.fromkeys(name for each in trials for name in each.values)
    values = [f"{trial.values[name]:.2f}" if name in trial.values else "" for name in objectives]
    params = [_text(trial.params[key]) if key in trial.params else "" for key in _keys(trials)]
    state = trial.state + (f": {trial.failed}" if trial.failed else "")
    return [str(trial.number), *values, *params, state, f"{trial.seconds / 60:.2f}"]


def _keys(trials: Sequence[TrialResult]) -> list[str]:
    return list(dict.fromkeys(key for trial in trials for key in trial.params))


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
