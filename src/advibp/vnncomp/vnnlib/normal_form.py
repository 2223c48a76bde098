"""Linear comparisons, joined by `and` and `or` into a disjunctive normal form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, product
from typing import NamedTuple

_MOST_TERMS = 100_000
_MOST_PARTS = 20 * _MOST_TERMS
_SIDES = {"<=": (1.0,), "<": (1.0,), ">=": (-1.0,), ">": (-1.0,), "=": (1.0, -1.0)}

#: The signs of comparisons.
SIGNS = frozenset(_SIDES)


class Refused(Exception):
    """What a formula may not say; whoever knows its line adds it."""


class Linear(NamedTuple):
    """The sum of factor * variable over `factors`, which are not 0, plus a constant; all of them finite."""

    factors: dict[str, float]
    constant: float


#: Comparisons `linear <= 0` that hold together. Terms share their parts: what many have in common is kept once.
Part = tuple[Linear, ...]
#: A conjunction.
Term = tuple[Part, ...]
#: A disjunction; empty, it never holds.
Formula = list[Term]

TRUE: Formula = [()]
FALSE: Formula = []


def number(value: float) -> Linear:
    return _checked({}, value)


def combined(weighted: Iterable[tuple[float, Linear]]) -> Linear:
    factors: dict[str, float] = {}
    constant = 0.0
    for weight, term in weighted:
        constant += weight * term.constant
        for name, factor in term.factors.items():
            factors[name] = factors.get(name, 0.0) + weight * factor
    return _checked(factors, constant)


def total(terms: Sequence[Linear]) -> Linear:
    return combined((1.0, term) for term in terms)


def difference(terms: Sequence[Linear]) -> Linear:
    """Of one term its negative; of several the first less the others."""
    first, *others = terms
    return combined([(1.0 if others else -1.0, first), *((-1.0, other) for other in others)])


def multiplied(terms: Sequence[Linear]) -> Linear:
    varying = [term for term in terms if term.factors]
    if len(varying) > 1:
        raise Refused("a product of variables is not linear; multiply a variable by numbers only.")
    by = math.prod(term.constant for term in terms if not term.factors)
    return combined([(by, varying[0])]) if varying else number(by)


def divided(terms: Sequence[Linear]) -> Linear:
    factors, constant = terms[0]
    for by in terms[1:]:
        if by.factors or by.constant == 0.0:
            raise Refused("a division by a variable or by 0; divide by other numbers only.")
        factors = {name: factor / by.constant for name, factor in factors.items()}
        constant = constant / by.constant
    return _checked(factors, constant)


def _checked(factors: dict[str, float], constant: float) -> Linear:
    if not (math.isfinite(constant) and all(map(math.isfinite, factors.values()))):
        raise Refused("a number is too large for float64; numbers must be finite.")
    if not all(factors.values()):
        factors = {name: factor for name, factor in factors.items() if factor}
    return Linear(factors, constant + 0.0)  # -0.0 becomes 0.0


def compared(sign: str, terms: Sequence[Linear], *, negated: bool = False) -> Formula:
    """`a sign b`, or `a sign b` and `b sign c` for a chain; or the negation of the whole.

    < 0 is read as: at most the largest number of float64 below 0. So no point on a boundary is taken for one inside.
    """
    strict = (sign in ("<", ">")) != negated
    turn = -1.0 if negated else 1.0
    sides = [turn * side for side in _SIDES[sign]]
    atoms = [_atom(combined([(side, a), (-side, b)]), strict) for a, b in pairwise(terms) for side in sides]
    return disjunction(atoms) if negated else conjunction(atoms)


def _atom(row: Linear, strict: bool) -> Formula:
    """row <= 0: a bound of one input, whose factor becomes 1 or -1, or a relation between outputs."""
    if not row.factors:
        return TRUE if row.constant < 0 or (row.constant == 0 and not strict) else FALSE
    bounded = next((name for name in row.factors if name[0] == "X"), None)
    if bounded is not None and len(row.factors) > 1:
        other = next(name for name in row.factors if name != bounded)
        raise Refused(f"{bounded} is related to {other}; compare an input with numbers only: inputs must form a box.")
    if bounded is not None and abs(row.factors[bounded]) != 1.0:
        row = divided([row, number(abs(row.factors[bounded]))])
    if strict:
        row = _checked(row.factors, math.nextafter(row.constant, math.inf))
    return [((row,),)]


def disjunction(formulas: Sequence[Formula]) -> Formula:
    check_size(sum(map(len, formulas)))
    return list(chain.from_iterable(formulas))


def conjunction(formulas: Sequence[Formula]) -> Formula:
    """Every choice of one term from each formula; the later ones vary fastest."""
    if len(formulas) == 1:
        return formulas[0]
    if not all(formulas):
        return FALSE
    several = [formula for formula in formulas if len(formula) > 1]
    count = 1
    for formula in several:
        count *= len(formula)
        check_size(count)
    check_size(count, sum(count * sum(map(len, formula)) // len(formula) for formula in several))
    # Thousands of bounds become one part, which all terms share.
    alone = (formula[0] for formula in formulas if len(formula) == 1)
    shared = tuple(chain.from_iterable(chain.from_iterable(alone)))
    first: Term = (shared,) if shared else ()
    return [first + tuple(chain.from_iterable(choice)) for choice in product(*several)]


def check_size(terms: int, parts: int = 0) -> None:
    """Called before they are built."""
    if terms > _MOST_TERMS or parts > _MOST_PARTS:
        raise Refused(
            f"multiplied out, this is too long a disjunction, for there may be {_MOST_TERMS} terms; "
            f"split the property over files."
        )
