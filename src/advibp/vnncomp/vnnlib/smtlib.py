"""SMT-LIB text, as far as VNN-LIB uses it: declarations and assertions, read in one pass and without recursion.

A list is worked out when its parenthesis closes. `not` is pushed inwards on the way in: a list knows when it opens
whether it stands under an odd number of them, and then means its negation.
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
    Linear,
    Refused,
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

_DEEPEST = 1000
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
    """So many inputs and outputs, X_0 ... and Y_0 ..., and all assertions together."""

    inputs: int
    outputs: int
    terms: list[Term]


@dataclass(slots=True)
class _List:
    """An open parenthesis, and what it holds so far."""

    opened: int
    negated: bool
    quoted: bool  # in a command whose words are not worked out
    head: str = ""
    held: list[Any] = field(default_factory=list)


def parse(text: str) -> Script:
    """Raises Refused, with the line."""
    reader = _Reader()
    try:
        for token in _TOKEN.finditer(text):
            reader.take(token.group(), token.start())
        terms = reader.end()
    except Refused as refused:
        raise Refused(f"line {text.count(chr(10), 0, reader.at) + 1}: {refused}") from None
    return Script(_numbered("X", reader.declared), _numbered("Y", reader.declared), terms)


class _Reader:
    """`at` is the place in the text that a refusal speaks of."""

    def __init__(self) -> None:
        self.at = 0
        self.declared: dict[str, Linear] = {}
        self._asserted: list[Formula] = []
        self._open: list[_List] = []
        self._built = 0

    def take(self, token: str, at: int) -> None:
        self.at = at
        if token == "(":
            self._start()
        elif token == ")":
            self._close()
        elif token[0] != ";":
            self._word(token)

    def end(self) -> list[Term]:
        if self._open:
            self.at = self._open[0].opened
            raise Refused("this parenthesis is never closed; the file may be cut off, or a ')' is missing.")
        return conjunction(self._asserted)

    def _start(self) -> None:
        if len(self._open) == _DEEPEST:
            raise Refused(f"parentheses are nested more than {_DEEPEST} deep; write (or a b c) for (or a (or b c)).")
        outer = self._open[-1] if self._open else _List(self.at, negated=False, quoted=False, head="file")
        if not outer.head and not outer.quoted:
            raise Refused("'(' follows '('; expected the name of a command or an operator.")
        self._open.append(_List(self.at, outer.negated, outer.quoted))

    def _word(self, word: str) -> None:
        if word in ('"', "|"):
            raise Refused(f"this {word} has no partner; close it.")
        if not self._open:
            raise Refused(f"{_shown(word)} stands outside parentheses; expected a command, such as (assert ...).")
        last = self._open[-1]
        if last.head or last.quoted:
            last.held.append(word if last.quoted else self._value(word, last.negated))
        elif len(self._open) == 1:
            if word not in _COMMANDS:
                raise Refused(f"{_shown(word)} is no command of VNN-LIB; expected declare-const or assert.")
            last.head, last.quoted = word, word != "assert"
        elif word in _OPERATORS:
            last.head, last.negated = word, last.negated != (word == "not")
        else:
            raise Refused(f"{_shown(word)} is no operator; expected {' '.join(sorted(_OPERATORS))}.")

    def _value(self, word: str, negated: bool) -> Linear | Formula:
        if word in self.declared:
            return self.declared[word]
        if _NUMBER.fullmatch(word):
            return number(float(word))
        if word in ("true", "false"):
            return TRUE if (word == "true") != negated else FALSE
        raise Refused(f"{_shown(word)} is neither a number nor a variable; declare it before, or mend its name.")

    def _close(self) -> None:
        if not self._open:
            raise Refused("this ')' closes nothing; remove it.")
        done = self._open.pop()
        self.at = done.opened
        if self._open:
            self._open[-1].held.append(done.held if done.quoted else self._counted(_worked_out(done)))
        elif done.head in _DECLARING:
            self._declare(done)
        elif done.head == "assert":
            if len(done.held) != 1 or not _are_formulas(done.held):
                raise Refused("assert takes one formula, such as (assert (<= X_0 0.5)).")
            self._asserted.append(done.held[0])
        elif not done.head:
            raise Refused("() is no command; remove it.")

    def _counted(self, value: Linear | Formula) -> Linear | Formula:
        """A formula that grows with every level it is nested in is built anew in each: all of them count."""
        if isinstance(value, list) and len(value) > 1:
            self._built += sum(map(len, value))
            check_size(len(value), self._built)
        return value

    def _declare(self, done: _List) -> None:
        name, *sort = done.held or [None]
        if sort != (["Real"] if done.head == "declare-const" else [[], "Real"]):
            raise Refused("a declaration must be of the form (declare-const X_0 Real).")
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise Refused(f"{_shown(name)} is no variable of VNN-LIB; inputs are X_0, X_1 and so on, outputs Y_0, Y_1.")
        if name in self.declared:
            raise Refused(f"{name} is declared twice; remove one declaration.")
        self.declared[name] = Linear({name: 1.0}, 0.0)


def _worked_out(done: _List) -> Linear | Formula:
    head, held = done.head, done.held
    if head in ("and", "or"):
        if not _are_formulas(held):
            raise Refused(f"{head} joins formulas; expected comparisons such as (<= Y_0 Y_1) in it.")
        return conjunction(held) if (head == "and") != done.negated else disjunction(held)
    if head == "not":
        if len(held) != 1 or not _are_formulas(held):
            raise Refused("not takes one formula, such as (not (<= Y_0 Y_1)).")
        return held[0]  # it knew
    if not head:
        raise Refused("() is no formula and no number; fill or remove it.")
    if len(held) < (1 if head in ("+", "-", "*") else 2) or not all(isinstance(value, Linear) for value in held):
        raise Refused(f"{head} takes numbers and variables, such as ({head} Y_0 2.5).")
    return compared(head, held, negated=done.negated) if head in SIGNS else _ARITHMETIC[head](held)


def _are_formulas(values: list[Any]) -> TypeGuard[list[Formula]]:
    return all(isinstance(value, list) for value in values)


def _numbered(letter: str, declared: dict[str, Linear]) -> int:
    names = [name for name in declared if name[0] == letter]
    if not names:
        raise Refused(f"no variable {letter}_0 is declared; number inputs from X_0 on and outputs from Y_0.")
    for i in range(len(names)):
        if f"{letter}_{i}" not in declared:
            raise Refused(f"{letter}_{i} is not declared, but {names[-1]} is; number variables from 0 without gaps.")
    return len(names)


def _shown(word: Any) -> str:
    text = word if isinstance(word, str) else "(...)"
    return repr(text if len(text) <= 40 else text[:40] + "...")
