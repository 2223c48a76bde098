"""The paper's numbers, read from its LaTeX text. The text is not part of the repository.

It is looked for in the folder `shared/paper` beside the repository, or where the environment's ADVIBP_PAPER says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Tables by their labels; each row as a tuple of cells, as printed. "[1]" is the mark of a footnote.
Tables = dict[str, list[tuple[str, ...]]]

_LABELS = ("results", "all_models_results", "robustness", "full_results", "post_robustness", "runtime")


def find_paper() -> str | None:
    """Return the text of the paper; None if it is missing."""
    beside = Path(__file__).parents[2].parent / "shared" / "paper"
    folder = Path(os.environ.get("ADVIBP_PAPER") or beside)
    for file in sorted(folder.glob("*.txt")):
        text = file.read_text("utf-8")
        if r"\label{tab:robustness}" in text:
            return text
    return None


def read_tables(text: str) -> Tables:
    """All tables with numbers. `literature` is the right part of `results`, `baseline` the times in the text."""
    tables: Tables = {label: list(_rows(text, label)) for label in _LABELS}
    wide = tables.pop("results")
    tables["literature"] = [(row[0], *row[11:]) for row in wide if len(row) > 11 and row[11] and row[12] != "n/a"]
    tables["results"] = [row[:11] for row in wide if row[1]]
    (times,) = re.findall(r"baseline method for the three models were (\d+), (\d+), and (\d+) seconds", text)
    tables["baseline"] = [times]
    return tables


def _rows(text: str, label: str) -> Iterator[tuple[str, ...]]:
    """Rows that hold numbers. A cell over several rows stands in the last of them; eps and data are filled in here."""
    end = text.index(rf"\label{{tab:{label}}}")
    *_, last = re.finditer(r"\\begin\{table\*?\}", text[:end])
    table = text[last.start() : end]
    found = [tuple(_cell(part) for part in re.split(r"(?<!\\)&", row)) for row in table.split(r"\\")]
    found = [row for row in found if any(re.match(r"\d+\.\d\d|\d{4,}$|n/a$", cell) for cell in row)]
    spans = {"all_models_results": 2, "runtime": 0}.get(label, 1)  # columns whose cells go over several rows
    fill: list[str] = [""] * spans
    filled = []
    for row in reversed(found):
        fill = [cell or old for cell, old in zip(row[:spans], fill, strict=True)]
        filled.append((*fill, *row[spans:]))
    yield from reversed(filled)


def _cell(text: str) -> str:
    """Return the text of a cell without LaTeX commands."""
    text = re.sub(r"\\cellcolor\[HTML\]\{\w+\}|\\cline\{[^}]*\}|\\citep\{\w+\}|~", "", text)
    text = re.sub(r"\\multicolumn\{\d\}\{[^{}]*\}|\\multirow\{-?\d\}\{\*\}|\\textbf", "", text)
    text = re.sub(r"\\(hline|bottomrule|midrule|toprule)", "", text)
    text = re.sub(r"\\tnote\{(\d)\}", r"[\1]", text)
    text = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    text = text.replace(r"\toolname", "AdvIBP")
    text = re.sub(r"\\epsilon\{?=\}?", "", text)
    return " ".join(re.sub(r"[{}$]", "", text).split())


def read_hyperparameters(text: str) -> dict[str, dict[str, Any]]:
    """Return the hyperparameters of the appendix by data set."""
    begin = text.index("Training hyperparameters are detailed below")
    _, mnist, cifar = text[begin : text.index(r"\end{itemize}", begin)].split(r"\item ")
    return {"mnist": _numbers(_plain(mnist), _MNIST), "cifar10": _numbers(_plain(cifar), _CIFAR)}


def _plain(text: str) -> str:
    """'$c_\\text{max} {=} 1e{-}4$' -> 'c_max = 1e-4'."""
    text = re.sub(r"\\text\{(\w+)\}", r"\1", text)
    text = re.sub(r"([\d.]+) \\times 10\^\{(-\d+)\}", r"\1e\2", text)
    text = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    text = text.replace(r"\times", "x").replace(r"\beta", "beta").replace(r"\epsilon", "eps")
    return " ".join(re.sub(r"[{}$]", "", text).replace(" = ", "=").split())


_COMMON = {
    "warmup_natural": r"T_nat=(\d+)",
    "warmup_adversarial": r"T_adv=(\d+)",
    "ramp": r"R=(\d+)",
    "c_extra": r"extra (\d+) epochs training at eps_train",
    "c_decay": r"T'=(\d+)",
    "beta1": r"beta_1=([\d.]+\d)",
    "beta2": r"beta_2=([\d.]+\d)",
    "batch_size": r"batch size of (\d+)",
    "stage_lr": r"start with learning rate ([\d.]+e-\d+)",
}


_MNIST = _COMMON | {
    "epochs_after_warmup": r"After warm-up phase, we train (\d+) epochs",
    "lr": r"set learning rate to ([\d.]+e-\d+)",
    "c_max at 0.4": r"c_max=(1e-\d) for eps_train=0\.4",
    "c_max at 0.2": r"c_max=(1e-\d) for eps_train=0\.2",
    "lr_divisor": r"reduce the learning rate by (\d+)x at epoch",
    "lr_milestones": r"x at epoch (\d+) and (\d+)",
    "stage_epochs": r"train (\d+) epochs each layer",
    "stage_lr_divisor": r"reduce the learning rate by (\d+)x at \d+,",
    "stage_lr_milestones": r"x at (\d+), (\d+) and (\d+) epoch",
}

_CIFAR = _COMMON | {
    "eps_factor": r"eps_train=([\d.]+) eps",
    "epochs": r"train (\d+) epochs each layer with a batch size",
    "warmup": r"first (\d+) epochs as warm-up",
    "lr": r"from ([\d.]+e-\d+)",
    "c_max at 8": r"c_max=(1e-\d) for eps_train=8/255 and eps=16/255",
    "c_max at 16": r"c_max=(1e-\d) for eps_train=8/255 and eps=16/255",
    "c_max at 2": r"c_max=(1e-\d) for eps=2/255",
    "lr_divisor": r"Learning rate is reduced by (\d+)x",
    "lr_milestones": r"x at epoch (\d+) and (\d+)",
    "stage_epochs": r"layer-wise training stage, .* train (\d+) epochs each layer",
    "stage_lr_divisor": r"We reduce the learning rate by (\d+)x every",
    "stage_lr_every": r"x every (\d+) epochs",
}


def _numbers(text: str, patterns: dict[str, str]) -> dict[str, Any]:
    """The first group of each pattern, which must occur; several groups as a tuple."""
    found: dict[str, Any] = {}
    for key, pattern in patterns.items():
        match = re.search(pattern, text)
        assert match, f"the paper's text has no {key}: {pattern}"
        numbers = tuple(float(group) for group in match.groups())
        found[key] = numbers[0] if len(numbers) == 1 else numbers
    return found
