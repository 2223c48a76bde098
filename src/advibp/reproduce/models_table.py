"""Two methods on many nets: best, median and worst errors, and how often AdvIBP has the lower error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median

from advibp.display.eps import format_eps
from advibp.report.sections import Section, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import ERRORS, HEADS, beside, notes, three_columns
from advibp.reproduce.plan import Plan
from advibp.reproduce.published import METHODS, Published, published
from advibp.reproduce.run_specs import Ask, RunSpec, Setting, make_task, run_spec

_NETS = {"mnist": tuple("abcdefghij"), "cifar10": tuple("abcdefg")}
_RADII = {"mnist": (0.2, 0.3), "cifar10": (8 / 255,)}
_METHODS = ("crown-ibp", "advibp")
_RANKS: dict[str, Callable[[Sequence[float]], float]] = {"best": min, "median": median, "worst": max}


def _nets(ask: Ask) -> tuple[str, ...]:
    every = _NETS[ask.setting().data]
    return ask.models or ask.at_scale(tiny=every[:2], fast=every, paper=every)


def _radii(ask: Ask) -> tuple[float, ...]:
    table = _RADII[ask.setting().data]
    return ask.radii(table, table)


def _specs(ask: Ask) -> list[RunSpec]:
    setting, radii = ask.setting(), _radii(ask)
    return [
        run_spec(
            ask, setting, net=net, method=method, eps=eps, seed=seed, tasks=[make_task(ask, setting.tested(eps, radii))]
        )
        for net in _nets(ask)
        for method in ask.method_names(_METHODS)
        for eps in dict.fromkeys(setting.trained_for[e] for e in radii)
        for seed in ask.seed_list()
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    setting, rows, every, wins = ask.setting(), [], [], []
    complete = not ask.models and ask.scale != "tiny"  # the paper's ranks are over all its nets
    for eps in _radii(ask):
        errors = {method: _by_net(measured, method, eps, setting) for method in ask.method_names(_METHODS)}
        for method, nets in errors.items():
            for rank, of in _RANKS.items():
                row = _published(setting, method, rank, eps)
                cells = []
                for k, (_, key) in enumerate(ERRORS):
                    value = of([numbers[k] for numbers in nets.values()])
                    paper = getattr(row, key) if row else None
                    cells += beside([value], paper, compare=complete and ask.data in (None, setting.data))
                rows.append([format_eps(eps), method, rank, *cells])
            every += [[format_eps(eps), method, net, *(f"{n:.2f}" for n in numbers)] for net, numbers in nets.items()]
        wins += _wins(setting, errors, eps)
    head = ["eps", "method", "of all nets", *(c for name, _ in ERRORS for c in three_columns(name))]
    lines = [note for note in notes(ask, measured, setting, _nets(ask)) if "stand-in" not in note]
    if not complete:
        lines.append(f"Only the nets {', '.join(_nets(ask))}, so that no difference from the paper's ranks is given.")
    return [
        TableSection(
            title="Errors over many nets: best, median, worst",
            head=head,
            rows=rows,
            notes=[*wins, HEADS, "Best, median and worst are determined for each column separately.", *lines],
        ),
        TableSection(title="Each net", head=["eps", "method", "net", *(name for name, _ in ERRORS)], rows=every),
    ]


def _by_net(measured: Sequence[Measured], method: str, eps: float, setting: Setting) -> dict[str, list[float]]:
    """Return standard, verified and attack error of each net, as means over its seeds."""
    by_net: dict[str, list[list[float]]] = {}
    for one in measured:
        recipe = one.spec.recipe
        if (recipe.method, recipe.eps) == (method, setting.trained_for[eps]):
            errors = one.errors(eps)
            by_net.setdefault(recipe.net, []).append([errors.standard, errors.verified["ibp"], errors.attack])
    return {net: [mean(column) for column in zip(*seeds, strict=True)] for net, seeds in by_net.items()}


def _published(setting: Setting, method: str, rank: str, eps: float) -> Published | None:
    data = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[setting.data]
    for row in published("all_models_results"):
        if (row.data, row.method, row.eps) == (data, METHODS.get(method), eps) and row.model.endswith(f" {rank}"):
            return row
    return None


def _wins(setting: Setting, errors: dict[str, dict[str, list[float]]], eps: float) -> list[str]:
    """Return a note: on how many nets AdvIBP has a lower verified error than the first other method."""
    rivals = [method for method in errors if method != "advibp"]
    if "advibp" not in errors or not rivals:
        return []
    ours, theirs = errors["advibp"], errors[rivals[0]]
    lower = sum(ours[net][1] < theirs[net][1] for net in ours)
    row = _published(setting, "advibp", "best", eps) if rivals[0] == "crown-ibp" else None
    paper = f" (paper: {row.note.split()[0].replace('/', ' of ')})" if row and row.note else ""
    return [
        f"eps {format_eps(eps)}: advibp has a lower verified error than {rivals[0]} on {lower} of {len(ours)} "
        f"nets{paper}."
    ]


MODELS_TABLE = Plan(
    description="best, median and worst of the nets a to j; --data cifar10: a to g", specs=_specs, sections=_sections
)
