"""Formulas in disjunctive normal form: linear comparisons, joined by `and` and `or`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, product
from typing import NamedTuple

_MAX_TERMS = 100_000
_MAX_PARTS = 20 * _MAX_TERMS
_SIDES = {"<=": (1.0,), "<": (1.0,), ">=": (-1.0,), ">": (-1.0,), "=": (1.0, -1.0)}

#: Comparison operators.
SIGNS = frozenset(_SIDES)


class FormulaError(Exception):
    """A formula that is not supported. `smtlib.parse` adds the line to the message."""


class Linear(NamedTuple):
    """Sum of factor * variable over `factors`, plus a constant. Factors are not 0; all numbers are finite."""

    factors: dict[str, float]
    constant: float


#: A conjunction of comparisons `linear <= 0`. Several terms can share a part, which is then stored once.
Part = tuple[Linear, ...]
#: A conjunction of parts.
Term = tuple[Part, ...]
#: A disjunction of terms. The empty formula is false.
Formula = list[Term]

TRUE: Formula = [()]
FALSE: Formula = []


def number(value: float) -> Linear:
    return _checked({}, value)


def combined(weighted: Iterable[tuple[float, Linear]]) -> Linear:
    """Return the sum of weight * term."""
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
    """Return the negative of a single term, or the first term minus the others."""
    first, *others = terms
    return combined([(1.0 if others else -1.0, first), *((-1.0, other) for other in others)])


def multiplied(terms: Sequence[Linear]) -> Linear:
    varying = [term for term in terms if term.factors]
    if len(varying) > 1:
        raise FormulaError("a product of variables is not linear; multiply variables only by numbers.")
    by = math.prod(term.constant for term in terms if not term.factors)
    return combined([(by, varying[0])]) if varying else number(by)


def divided(terms: Sequence[Linear]) -> Linear:
    factors, constant = terms[0]
    for by in terms[1:]:
        if by.factors or by.constant == 0.0:
            raise FormulaError("division by a variable or by 0; divide only by nonzero numbers.")
        factors = {name: factor / by.constant for name, factor in factors.items()}
        constant = constant / by.constant
    return _checked(factors, constant)


def _checked(factors: dict[str, float], constant: float) -> Linear:
    if not (math.isfinite(constant) and all(map(math.isfinite, factors.values()))):
        raise FormulaError("a number is too large for float64; numbers must be finite.")
    if not all(factors.values()):
        factors = {name: factor for name, factor in factors.items() if factor}
    return Linear(factors, constant + 0.0)  # -0.0 becomes 0.0


def compared(sign: str, terms: Sequence[Linear], *, negated: bool = False) -> Formula:
    """Return `a sign b`, or `a sign b` and `b sign c` for a chain; with `negated`, the negation of all of it.

    A strict comparison x < 0 becomes x <= -t for the smallest positive float64 t, so that a point on the boundary
    does not satisfy it.
    """
    strict = (sign in ("<", ">")) != negated
    direction = -1.0 if negated else 1.0
    sides = [direction * side for side in _SIDES[sign]]
    atoms = [_atom(combined([(side, a), (-side, b)]), strict) for a, b in pairwise(terms) for side in sides]
    return disjunction(atoms) if negated else conjunction(atoms)


def _atom(row: Linear, strict: bool) -> Formula:
    """Return row <= 0 as a formula: a bound of one input, scaled to factor 1 or -1, or a relation between outputs."""
    if not row.factors:
        return TRUE if row.constant < 0 or (row.constant == 0 and not strict) else FALSE
    variable = next((name for name in row.factors if name[0] == "X"), None)
    if variable is not None and len(row.factors) > 1:
        other = next(name for name in row.factors if name != variable)
        raise FormulaError(
            f"{variable} is compared with {other}, but inputs must form a box; compare inputs only with numbers."
        )
    if variable is not None and abs(row.factors[variable]) != 1.0:
        row = divided([row, number(abs(row.factors[variable]))])
    if strict:
        row = _checked(row.factors, math.nextafter(row.constant, math.inf))
    return [((row,),)]


def disjunction(formulas: Sequence[Formula]) -> Formula:
    check_size(sum(map(len, formulas)))
    return list(chain.from_iterable(formulas))


def conjunction(formulas: Sequence[Formula]) -> Formula:
    """Return all combinations of one term from each formula; the last formula varies fastest."""
    if len(formulas) == 1:
        return formulas[0]
    if not all(formulas):
        return FALSE
    disjunctions = [formula for formula in formulas if len(formula) > 1]
    count = 1
    for formula in disjunctions:
        count *= len(formula)
        check_size(count)
    check_size(count, sum(count * sum(map(len, formula)) // len(formula) for formula in disjunctions))
    # Formulas with a single term, such as thousands of input bounds, become one part that all terms share.
    single_terms = (formula[0] for formula in formulas if len(formula) == 1)
    shared = tuple(chain.from_iterable(chain.from_iterable(single_terms)))
    first: Term = (shared,) if shared else ()
    return [first + tuple(chain.from_iterable(choice)) for choice in product(*disjunctions)]


def check_size(terms: int, parts: int = 0) -> None:
    """Raise an error if a formula is too long. Call it before the formula is built."""
    if terms > _MAX_TERMS or parts > _MAX_PARTS:
        raise FormulaError(
            f"in disjunctive normal form the property has more than {_MAX_TERMS} terms; split it into several files."
        )
