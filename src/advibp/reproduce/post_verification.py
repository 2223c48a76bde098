"""Verified errors of trained networks with stronger verifiers.

A network is strictly more robust than another one if its verified error is below the other one's error under attack,
because neither a better verifier nor a better attack can change that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from advibp.display.eps import format_eps
from advibp.report.sections import Section, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import beside, comparable, notes, spread, three_columns
from advibp.reproduce.plan import Plan
from advibp.reproduce.published import Published, find
from advibp.reproduce.run_specs import MNIST, Ask, RunSpec, make_task, run_spec
from advibp.verify.verifiers import VERIFIERS, in_order

_BY = tuple(in_order(("ibp", "crown", "alpha-crown", "refinezono", "bab", "milp")))
_COLUMNS = {name: VERIFIERS[name].label for name in _BY if name not in ("bab", "milp")}  # those are in `complete`
_IN_PAPER = ("IBP", "RefineZono")  # verifiers of the paper's table
_MODELS = ("dm-small", "dm-medium", "dm-large")
_METHODS = ("crown-ibp", "advibp")
_RADII = (0.1, 0.2, 0.3)
_FOLDER = "certify-post"  # apart from the certification of all test images


def _radii(ask: Ask) -> tuple[float, ...]:
    return ask.radii(_RADII, (0.1,))


def _specs(ask: Ask) -> list[RunSpec]:
    radii = _radii(ask)
    return [
        run_spec(
            ask,
            MNIST,
            net=net,
            method=method,
            eps=eps,
            seed=seed,
            tasks=[make_task(ask, MNIST.tested(eps, radii), by=_BY, sample=1000, folder=_FOLDER)],
        )
        for net in ask.nets(_MODELS)
        for method in ask.method_names(_METHODS)
        for eps in dict.fromkeys(MNIST.trained_for[e] for e in radii)
        for seed in ask.seed_list()
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    rows = []
    for eps in _radii(ask):
        for net in ask.nets(_MODELS):
            at = {method: _runs(measured, net, method, eps) for method in ask.method_names(_METHODS)}
            rows += [_row(ask, at, net, method, eps) for method in at]
    head = ["eps", "net", "method"]
    for name in _COLUMNS.values():
        head += three_columns(name) if name in _IN_PAPER else [name]
    head += ["complete", *three_columns("PGD"), "more robust"]
    budget = "1 second" if ask.scale == "tiny" else "60 seconds"
    return [
        TableSection(
            title="Verified by stronger verifiers",
            head=head,
            rows=rows,
            notes=[
                "Verified errors. Each verifier gets the images that the verifiers before it could not prove. "
                f"`complete`: all verifiers, the last being branch and bound and a mixed integer program, with at most "
                f"{budget} per image.",
                "IBP paper: the number in parentheses in Table D, or the only number for a net. RefineZono paper: by "
                "RefineZono, or by DeepZ where the cell says so; then no difference is given.",
                "The paper's errors by RefineZono and DeepZ are on 1,000 random test images; those by IBP and PGD are "
                "on all 10,000, as their two decimals show.",
                "more robust: whether this complete verified error is below crown-ibp's PGD error.",
                *notes(ask, measured, MNIST, _MODELS),
            ],
        )
    ]


def _runs(measured: Sequence[Measured], net: str, method: str, eps: float) -> list[Measured]:
    key = (net, method, MNIST.trained_for[eps])
    return [one for one in measured if (r := one.spec.recipe) and (r.net, r.method, r.eps) == key]


def _row(ask: Ask, at: dict[str, list[Measured]], net: str, method: str, eps: float) -> list[str]:
    errors = [one.errors(eps, _FOLDER) for one in at[method]]
    row = _published(ask, net, method, eps)
    compare = comparable(ask, MNIST)
    cells: list[str] = []
    for by, name in _COLUMNS.items():
        values = [e.verified[by] for e in errors]
        if name in _IN_PAPER:
            paper, other = _verified(row, name)
            cells += beside(values, paper, compare=compare, paper_by=other)
        else:
            cells.append(spread(values))
    cells.append(spread([e.best for e in errors]))
    cells += beside([e.attack for e in errors], row.attack if row else None, compare=compare)
    more = ""
    if method != "crown-ibp" and at.get("crown-ibp"):
        broken = mean(one.errors(eps, _FOLDER).attack for one in at["crown-ibp"])
        more = "yes" if strictly_below(mean(e.best for e in errors), broken) else "no"
    return [format_eps(eps), net, method, *cells, more]


def _verified(row: Published | None, verifier: str) -> tuple[float | None, str]:
    """Return the paper's verified error for a column, and its verifier if that is not the column's."""
    if row is None or verifier == "IBP":
        return (row.ibp if row else None), ""
    if row.verifier == "IBP":
        return None, ""
    return row.verified, "" if row.verifier == verifier else row.verifier


def strictly_below(percent: float, other: float) -> bool:
    """Return whether one percentage is below another; differences within rounding do not count."""
    return round(percent, 6) < round(other, 6)


def _published(ask: Ask, net: str, method: str, eps: float) -> Published | None:
    return find("post_robustness", MNIST.data, method, _MODELS[0] if ask.stands_in else net, eps)


POST_VERIFICATION = Plan(
    description="verified errors by stronger verifiers, on 1,000 test images", specs=_specs, sections=_sections
)
