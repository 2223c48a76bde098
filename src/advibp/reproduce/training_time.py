"""Training time of AdvIBP and of fixed weights."""

from __future__ import annotations

from statistics import mean

from advibp.report.sections import Section, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import shorter, spread
from advibp.reproduce.plan import Plan
from advibp.reproduce.published import find
from advibp.reproduce.run_specs import Ask, RunSpec, run_spec

_MODELS = ("dm-small", "dm-medium", "dm-large")
_METHODS = ("advibp", "fixed")


def _specs(ask: Ask) -> list[RunSpec]:
    return [
        run_spec(ask, ask.setting(), net=net, method=method, eps=ask.main_eps(), seed=seed)
        for net in ask.nets(_MODELS)
        for method in ask.method_names(_METHODS)
        for seed in ask.seed_list()
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    rows, setting = [], ask.setting()
    data = ask.data or setting.data
    for net in ask.nets(_MODELS):
        named = _MODELS[0] if ask.stands_in else net
        total, joint, paper = {}, {}, {}
        for method in ask.method_names(_METHODS):
            key = (net, method)
            runs = [one for one in measured if (one.spec.recipe.net, one.spec.recipe.method) == key]
            total[method] = [one.seconds for one in runs]
            joint[method] = [mean(seconds) for one in runs if (seconds := _joint_epochs(one))]
            row = find("runtime", data, method, named)
            paper[method] = row.seconds if row else None
        for method in total:
            published = paper[method]
            cells = [spread(joint[method]), spread(total[method], 0), "" if published is None else f"{published:.0f}"]
            rows.append([net, method, *cells, *_ratios(method, joint, paper)])
    return [
        TableSection(
            title="Training time in seconds",
            head=["net", "method", "joint epoch", "all epochs", "all, paper", "joint / fixed", "all / fixed, paper"],
            rows=rows,
            notes=[
                "Hardware and epochs differ: the paper's totals are on a GeForce GTX 1080 Ti (DM-Large: on four) and "
                "include layer-wise stages; ours are on the processor named below. Only ratios are comparable.",
                "joint epoch: an epoch on both losses, without validation. The warm-up is the same for both methods.",
                *shorter(measured, setting),
                *(["Net a is a stand-in for dm-small, whose published times are shown."] if ask.stands_in else []),
            ],
        )
    ]


def _joint_epochs(one: Measured) -> list[float]:
    """Return the seconds of each joint epoch; [] if the run has no metrics."""
    return [m["seconds"] for m in one.run.history if m.get("phase") in ("ramp", "full") and "seconds" in m]


def _ratios(method: str, joint: dict[str, list[float]], paper: dict[str, float | None]) -> list[str]:
    if method == "fixed" or "fixed" not in joint:
        return ["", ""]
    here = f"{mean(joint[method]) / mean(joint['fixed']):.2f}" if joint[method] and joint["fixed"] else ""
    ours, theirs = paper[method], paper["fixed"]
    return [here, f"{ours / theirs:.2f}" if ours and theirs else ""]


TRAINING_TIME = Plan(
    description="training time of AdvIBP and of fixed weights",
    specs=_specs,
    sections=_sections,
    narrowed_by=("models", "methods", "seeds", "data"),
)
