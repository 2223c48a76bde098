"""The numbers of the paper's tables, in percent."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from advibp.parsers import number

#: The paper's names of methods and data.
METHODS = {"advibp": "AdvIBP", "advcrown-ibp": "AdvCROWN-IBP", "crown-ibp": "CROWN-IBP", "fixed": "fixed weights"}
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}

#: A note for every comparison.
CHOSEN_ON_TEST = "The paper's checkpoints were chosen on the test set; ours are from the last epoch."


@dataclass(frozen=True)
class Published:
    """A row of one of the paper's tables. Missing numbers are None."""

    table: str  # label in the paper, without `tab:`
    data: str
    eps: float | None
    method: str  # the paper's name
    model: str
    standard: float | None
    verified: float | None
    attack: float | None
    verifier: str  # of `verified`
    in_parentheses: float | None  # the IBP verified error beside that of another verifier (Table D)
    note: str

    @property
    def ibp(self) -> float | None:
        """Verified error by IBP."""
        return self.verified if self.verifier == "IBP" else self.in_parentheses

    @property
    def seconds(self) -> float | None:
        """Seconds of training, in the table of times."""
        match = re.match(r"(\d+) s of training$", self.note)
        return float(match[1]) if match else None


@cache
def published(table: str) -> tuple[Published, ...]:
    """Return the rows of one table."""
    return tuple(row for row in _rows() if row.table == table)


@cache
def _rows() -> tuple[Published, ...]:
    text = (resources.files("advibp") / "reproduce" / "published.csv").read_text("utf-8")
    return tuple(
        Published(
            table=row["table"].removeprefix("tab:"),
            data=row["dataset"],
            eps=float(number(0, 1)(row["eps"])) if row["eps"] else None,
            method=row["method"],
            model=row["model"],
            standard=_percent(row["standard_error"]),
            verified=_percent(row["verified_error"]),
            attack=_percent(row["pgd_error"]),
            verifier=row["verifier"],
            in_parentheses=_percent(row["ibp_error"]),
            note=row["note"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def _percent(text: str) -> float | None:
    return float(text) if text else None


def find(table: str, data: str, method: str, model: str, eps: float | None = None) -> Published | None:
    """Return the row of a method, a net and data, by advibp's names; None if the paper has none."""
    for row in published(table):
        same = (row.data, row.method, row.model.lower()) == (DATA.get(data), METHODS.get(method), model.lower())
        if same and (eps is None or (row.eps is not None and abs(row.eps - eps) < 1e-9)):
            return row
    return None
