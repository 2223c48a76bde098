"""What stronger verifiers prove of trained networks, and whether one network is strictly more robust than another.

If what is left unproved of a network is less than what an attack breaks of another one, it is the more robust of the
two, whatever a verifier or an attack of the future may find.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from advibp.report.sections import Section, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import beside, comparable, notes, spread, three_columns
from advibp.reproduce.plan import Plan
from advibp.reproduce.published import Published, find
from advibp.reproduce.wanted import MNIST, Ask, Wanted, look, told, want
from advibp.verify.verifiers import VERIFIERS, in_order

_BY = tuple(in_order(("ibp", "crown", "alpha-crown", "refinezono", "bab", "milp")))
_COLUMNS = {name: VERIFIERS[name].label for name in _BY if name not in ("bab", "milp")}  # those are in `complete`
_IN_PAPER = ("IBP", "RefineZono")  # verifiers of the paper's table
_MODELS = ("dm-small", "dm-medium", "dm-large")
_METHODS = ("crown-ibp", "advibp")
_RADII = (0.1, 0.2, 0.3)
_FOLDER = "certify-post"  # beside what all test images said


def _radii(ask: Ask) -> tuple[float, ...]:
    return ask.radii(_RADII, (0.1,))


def _wanted(ask: Ask) -> list[Wanted]:
    radii = _radii(ask)
    return [
        want(
            ask,
            MNIST,
            net=net,
            method=method,
            eps=eps,
            seed=seed,
            looks=[look(ask, MNIST.tested(eps, radii), by=_BY, sample=1000, folder=_FOLDER)],
        )
        for net in ask.nets(_MODELS)
        for method in ask.rules(_METHODS)
        for eps in dict.fromkeys(MNIST.trained_for[e] for e in radii)
        for seed in ask.chances()
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    rows = []
    for eps in _radii(ask):
        for net in ask.nets(_MODELS):
            at = {method: _runs(measured, net, method, eps) for method in ask.rules(_METHODS)}
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
                "Verified errors, each verifier asked about what those before it left open; `complete`: all of them, "
                f"branch and bound and a mixed-integer program last, {budget} an image at most.",
                "IBP paper: in parentheses in Table D, or its only number for a net. RefineZono paper: of RefineZono, "
                "or of DeepZ where that is said; then no difference is given.",
                "The paper's errors by RefineZono and DeepZ are of 1,000 test images drawn at random; those by IBP and "
                "PGD are of all 10,000, as their two decimals show.",
                "more robust: strictly more than crown-ibp, whose PGD error lies above this complete verified error.",
                *notes(ask, measured, MNIST, _MODELS),
            ],
        )
    ]


def _runs(measured: Sequence[Measured], net: str, method: str, eps: float) -> list[Measured]:
    wanted = (net, method, MNIST.trained_for[eps])
    return [one for one in measured if (r := one.wanted.recipe) and (r.net, r.method, r.eps) == wanted]


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
    return [told(eps), net, method, *cells, more]


def _verified(row: Published | None, verifier: str) -> tuple[float | None, str]:
    """The paper's verified error for a column, and who verified if not the column's verifier."""
    if row is None or verifier == "IBP":
        return (row.ibp if row else None), ""
    if row.verifier == "IBP":
        return None, ""
    return row.verified, "" if row.verifier == verifier else row.verifier


def strictly_below(percent: float, other: float) -> bool:
    """Where 3.5 % is 100 (1 - 0.965) of one network and 100 · 0.035 of another, no network is the better one."""
    return round(percent, 6) < round(other, 6)


def _published(ask: Ask, net: str, method: str, eps: float) -> Published | None:
    return find("post_robustness", MNIST.data, method, _MODELS[0] if ask.stands_in else net, eps)


POST_VERIFICATION = Plan(
    says="verified errors by stronger verifiers, on 1,000 test images", wanted=_wanted, sections=_sections
)
