"""Parse the subset of SMT-LIB that VNN-LIB uses: declarations and assertions.

The text is parsed in one pass without recursion. A list is evaluated at its closing parenthesis. Negations are pushed
inwards: each list stores, from its opening parenthesis on, whether it is inside an odd number of `not`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from advibp.vnncomp.vnnlib.normal_form import (
    FALSE,
    SIGNS,
    TRUE,
    Formula,
    FormulaError,
    Linear,
    Term,
    check_size,
    compared,
    conjunction,
    difference,
    disjunction,
    divided,
    multiplied,
    number,
    total,
)

_MAX_DEPTH = 1000
_TOKEN = re.compile(r'[()]|;[^\n]*|"[^"]*"|\|[^|]*\||[^\s()";|]+|["|]', re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_VARIABLE = re.compile(r"[XY]_(?:0|[1-9]\d{0,8})", re.ASCII)

_ARITHMETIC: dict[str, Callable[[Sequence[Linear]], Linear]] = {
    "+": total,
    "-": difference,
    "*": multiplied,
    "/": divided,
}
_OPERATORS = frozenset(_ARITHMETIC) | SIGNS | {"and", "or", "not"}
_DECLARING = {"declare-const", "declare-fun"}
_IGNORED = {"set-logic", "set-info", "set-option", "check-sat", "get-model", "get-value", "exit"}
_COMMANDS = _DECLARING | _IGNORED | {"assert"}


@dataclass(frozen=True)
class Script:
    """Numbers of inputs X_i and outputs Y_i, and the conjunction of all assertions."""

    inputs: int
    outputs: int
    terms: list[Term]


@dataclass(slots=True)
class _List:
    """A list whose parenthesis is still open."""

    start: int  # position in the text
    negated: bool
    verbatim: bool  # inside a command whose words are not evaluated
    head: str = ""
    items: list[Any] = field(default_factory=list)


def parse(text: str) -> Script:
    """Parse a script.

    Raises:
        FormulaError: with the number of the line.
    """
    reader = _Reader()
    try:
        for token in _TOKEN.finditer(text):
            reader.take(token.group(), token.start())
        terms = reader.end()
    except FormulaError as error:
        raise FormulaError(f"line {text.count(chr(10), 0, reader.position) + 1}: {error}") from None
    return Script(_count("X", reader.declared), _count("Y", reader.declared), terms)


class _Reader:
    """Evaluates tokens one by one. `position` is the place in the text that an error refers to."""

    def __init__(self) -> None:
        self.position = 0
        self.declared: dict[str, Linear] = {}
        self._asserted: list[Formula] = []
        self._open: list[_List] = []
        self._size = 0

    def take(self, token: str, position: int) -> None:
        self.position = position
        if token == "(":
            self._start()
        elif token == ")":
            self._close()
        elif token[0] != ";":
            self._word(token)

    def end(self) -> list[Term]:
        if self._open:
            self.position = self._open[0].start
            raise FormulaError("this parenthesis is never closed; the file is incomplete, or a ')' is missing.")
        return conjunction(self._asserted)

    def _start(self) -> None:
        if len(self._open) == _MAX_DEPTH:
            raise FormulaError(
                f"parentheses are nested more than {_MAX_DEPTH} deep; write (or a b c) for (or a (or b c))."
            )
        outer = self._open[-1] if self._open else _List(self.position, negated=False, verbatim=False, head="file")
        if not outer.head and not outer.verbatim:
            raise FormulaError("'(' follows '('; expected the name of a command or an operator.")
        self._open.append(_List(self.position, outer.negated, outer.verbatim))

    def _word(self, word: str) -> None:
        if word in ('"', "|"):
            raise FormulaError(f"this {word} is never closed; add the closing {word}.")
        if not self._open:
            raise FormulaError(f"{_quoted(word)} is outside parentheses; expected a command, such as (assert ...).")
        last = self._open[-1]
        if last.head or last.verbatim:
            last.items.append(word if last.verbatim else self._value(word, last.negated))
        elif len(self._open) == 1:
            if word not in _COMMANDS:
                raise FormulaError(f"{_quoted(word)} is not a command of VNN-LIB; expected declare-const or assert.")
            last.head, last.verbatim = word, word != "assert"
        elif word in _OPERATORS:
            last.head, last.negated = word, last.negated != (word == "not")
        else:
            raise FormulaError(f"{_quoted(word)} is not an operator; expected {' '.join(sorted(_OPERATORS))}.")

    def _value(self, word: str, negated: bool) -> Linear | Formula:
        if word in self.declared:
            return self.declared[word]
        if _NUMBER.fullmatch(word):
            return number(float(word))
        if word in ("true", "false"):
            return TRUE if (word == "true") != negated else FALSE
        raise FormulaError(f"{_quoted(word)} is neither a number nor a declared variable; declare it first.")

    def _close(self) -> None:
        if not self._open:
            raise FormulaError("this ')' has no matching '('; remove it.")
        closed = self._open.pop()
        self.position = closed.start
        if self._open:
            self._open[-1].items.append(closed.items if closed.verbatim else self._check_size(_evaluate(closed)))
        elif closed.head in _DECLARING:
            self._declare(closed)
        elif closed.head == "assert":
            if len(closed.items) != 1 or not _are_formulas(closed.items):
                raise FormulaError("assert takes one formula, such as (assert (<= X_0 0.5)).")
            self._asserted.append(closed.items[0])
        elif not closed.head:
            raise FormulaError("() is not a command; remove it.")

    def _check_size(self, value: Linear | Formula) -> Linear | Formula:
        """Limit the total size of all formulas, since each level of nesting builds a new one."""
        if isinstance(value, list) and len(value) > 1:
            self._size += sum(map(len, value))
            check_size(len(value), self._size)
        return value

    def _declare(self, declaration: _List) -> None:
        name, *sort = declaration.items or [None]
        if sort != (["Real"] if declaration.head == "declare-const" else [[], "Real"]):
            raise FormulaError("a declaration must have the form (declare-const X_0 Real).")
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise FormulaError(
                f"{_quoted(name)} is not a variable of VNN-LIB; name inputs X_0, X_1, ... and outputs Y_0, Y_1, ..."
            )
        if name in self.declared:
            raise FormulaError(f"{name} is declared twice; remove one declaration.")
        self.declared[name] = Linear({name: 1.0}, 0.0)


def _evaluate(closed: _List) -> Linear | Formula:
    head, items = closed.head, closed.items
    if head in ("and", "or"):
        if not _are_formulas(items):
            raise FormulaError(f"{head} joins formulas; expected comparisons such as (<= Y_0 Y_1) in it.")
        return conjunction(items) if (head == "and") != closed.negated else disjunction(items)
    if head == "not":
        if len(items) != 1 or not _are_formulas(items):
            raise FormulaError("not takes one formula, such as (not (<= Y_0 Y_1)).")
        return items[0]  # which was evaluated as negated
    if not head:
        raise FormulaError("() is neither a formula nor a number; remove it.")
    if len(items) < (1 if head in ("+", "-", "*") else 2) or not all(isinstance(value, Linear) for value in items):
        raise FormulaError(f"{head} takes numbers and variables, such as ({head} Y_0 2.5).")
    return compared(head, items, negated=closed.negated) if head in SIGNS else _ARITHMETIC[head](items)


def _are_formulas(values: list[Any]) -> TypeGuard[list[Formula]]:
    return all(isinstance(value, list) for value in values)


def _count(letter: str, declared: dict[str, Linear]) -> int:
    """Return the number of declared variables with this letter, and check that their numbers have no gaps."""
    names = [name for name in declared if name[0] == letter]
    if not names:
        raise FormulaError(f"{letter}_0 is not declared; declare inputs X_0, X_1, ... and outputs Y_0, Y_1, ...")
    for i in range(len(names)):
        if f"{letter}_{i}" not in declared:
            raise FormulaError(
                f"{letter}_{i} is not declared, but {names[-1]} is; number variables from 0 without gaps."
            )
    return len(names)


def _quoted(word: Any) -> str:
    text = word if isinstance(word, str) else "(...)"
    return repr(text if len(text) <= 40 else text[:40] + "...")
