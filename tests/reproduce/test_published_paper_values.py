"""Every number of published.csv and of recipe/shipped/paper is the paper's, digit by digit.

They are compared twice: with values that are pinned here, and with the paper's own text where it is at hand.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from paper_text import Tables, find_paper, read_hyperparameters, read_tables

from advibp.recipe import read

PAPER = find_paper()
needs_paper = pytest.mark.skipif(PAPER is None, reason="the paper's text is not here; ADVIBP_PAPER names its folder")
SOURCES = ["pinned", pytest.param("paper", marks=needs_paper)]
RECIPES = ("mnist-0.2", "mnist-0.4", "cifar10-2", "cifar10-8", "cifar10-16")
SIZES = ("Small", "Medium", "Large")
ERRORS = ("standard", "verified", "pgd")  # the order in a recipe

#: Of the appendix, "Models and Hyperparameters".
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "mnist": {
        "warmup_natural": 10,
        "warmup_adversarial": 40,
        "epochs_after_warmup": 200,
        "ramp": 50,
        "c_extra": 10,
        "c_decay": 50,
        "c_max at 0.2": 1e-5,
        "c_max at 0.4": 1e-4,
        "beta1": 0.9,
        "beta2": 0.99,
        "batch_size": 256,
        "lr": 5e-4,
        "lr_divisor": 4,
        "lr_milestones": (150, 200),
        "stage_epochs": 250,
        "stage_lr": 1.25e-4,
        "stage_lr_divisor": 4,
        "stage_lr_milestones": (50, 100, 200),
    },
    "cifar10": {
        "eps_factor": 1.1,
        "epochs": 3200,
        "warmup": 800,
        "warmup_natural": 400,
        "warmup_adversarial": 410,
        "ramp": 1000,
        "c_extra": 20,
        "c_decay": 280,
        "c_max at 2": 1e-5,
        "c_max at 8": 1e-3,
        "c_max at 16": 1e-3,
        "beta1": 0.9,
        "beta2": 0.99,
        "batch_size": 256,
        "lr": 5e-4,
        "lr_divisor": 10,
        "lr_milestones": (2200, 2700),
        "stage_epochs": 3200,
        "stage_lr": 5e-5,
        "stage_lr_divisor": 10,
        "stage_lr_every": 1000,
    },
}

#: Keys of recipe/shipped/paper that hold no number of the paper's text: how we read it.
READINGS: dict[str, Any] = {
    "net": "dm-small",
    "method": "advibp",
    "ramp_shape": "linear",
    "fosc_scale": "batch",
    "fosc_set": "ball",
    "lr_shape": "steps",
    "stages": "all",
    "clip": "none",
    "l1": 0,
    "init": "default",
    "normalize": False,
}


def pinned_tables() -> Tables:
    tables: Tables = {}
    for block in (Path(__file__).parent / "paper_values.txt").read_text("utf-8").split("\n# ")[1:]:
        label, _, *lines = block.splitlines()
        tables[label] = [tuple(cell.strip() for cell in line.split("|")) for line in lines if line.strip()]
    return tables


def tables_of(source: str) -> Tables:
    return pinned_tables() if source == "pinned" else read_tables(PAPER or "")


def hyperparameters_of(source: str) -> dict[str, dict[str, Any]]:
    return HYPERPARAMETERS if source == "pinned" else read_hyperparameters(PAPER or "")


@needs_paper
def test_what_is_pinned_is_the_papers() -> None:
    assert pinned_tables() == read_tables(PAPER or "")
    assert read_hyperparameters(PAPER or "") == HYPERPARAMETERS


# published.csv


@pytest.mark.parametrize("source", SOURCES)
def test_published_numbers(source: str) -> None:
    text = (resources.files("advibp") / "reproduce" / "published.csv").read_text("utf-8")
    shipped = [_as_numbers(row) for row in csv.DictReader(text.splitlines())]
    expected = [_as_numbers(row) for row in expected_rows(tables_of(source))]
    assert len(shipped) == len(expected) == 130
    for row in expected:
        assert shipped.count(row) == 1, row


def _as_numbers(row: dict[str, str]) -> dict[str, Any]:
    """2.7 is 2.70."""
    return {key: float(cell) if key.endswith("_error") and cell else cell for key, cell in row.items()}


def expected_rows(tables: Tables) -> Iterator[dict[str, str]]:
    """The rows that published.csv should have."""
    for eps, method, *errors in tables["results"]:
        # Footnote 1: at this eps the verified error of CROWN-IBP is computed using CROWN.
        by = "CROWN" if eps.endswith("[1]") and method == "CROWN-IBP" else "IBP"
        for size, (standard, verified, attack) in zip(SIZES, _in_groups(errors, 3), strict=True):
            yield _row("results", "CIFAR-10", eps, method, f"DM-{size}", standard, verified, attack, by)
    named = {"IBP method[3]": ("IBP (Gowal)", "IBP"), "MIP": ("MIP (Xiao)", "MIP"), "COLT": ("COLT", "RefineZono")}
    for eps, method, standard, verified in tables["literature"]:
        name, by = named[method]
        yield _row("results", "CIFAR-10", eps, name, "best reported", standard, verified, "", by)
    for data, eps, method, *errors, lower in tables["all_models_results"]:
        nets = {"MNIST": "A-J", "CIFAR-10": "A-G"}[data]
        note = f"{lower} models lower" if lower else ""
        for k, rank in enumerate(("best", "median", "worst")):
            standard, verified, attack = errors[k::3]
            yield _row(
                "all_models_results", data, eps, method, f"{nets} {rank}", standard, verified, attack, "IBP", note=note
            )
    for eps, method, *errors in tables["robustness"]:
        for size, (standard, verified, attack) in zip(SIZES, _in_groups(errors, 3), strict=True):
            yield _row("robustness", "MNIST", eps, method, f"DM-{size}", standard, verified, attack, "IBP")
    for eps, method, *errors in tables["full_results"]:
        for size, (standard, verified) in zip(SIZES, _in_groups(errors, 2), strict=True):
            yield _row("full_results", "MNIST", eps, method, f"CNN-{size}", standard, verified, "", "IBP")
    for eps, method, *errors in tables["post_robustness"]:
        for size, (verified, attack) in zip(SIZES, _in_groups(errors, 2), strict=True):
            yield _post_row(eps, method, f"DM-{size}", verified, attack)
    times = [(data, "AdvIBP", seconds) for data, *seconds in tables["runtime"]]
    times += [("MNIST", "fixed weights", list(row)) for row in tables["baseline"]]
    for data, method, seconds in times:
        for size, count in zip(SIZES, seconds, strict=True):
            yield _row("runtime", data, "", method, f"DM-{size}", "", "", "", "", note=f"{count} s of training")


def _post_row(eps: str, method: str, model: str, verified: str, attack: str) -> dict[str, str]:
    """'6.20[3] (6.68)': by a stronger verifier, of 1000 images, and by IBP. '3.44': by IBP (footnote 1)."""
    found = re.fullmatch(r"([\d.]+)(\[3\])?(?: \(([\d.]+)\))?", verified)
    assert found
    error, deepz, ibp = found.groups()
    by = "IBP" if ibp is None else "DeepZ" if deepz else "RefineZono"
    note = "verified error: 1000 test images" if ibp else ""
    return _row("post_robustness", "MNIST", eps, method, model, "", error, attack, by, ibp=ibp or "", note=note)


def _row(
    table: str,
    data: str,
    eps: str,
    method: str,
    model: str,
    standard: str,
    verified: str,
    attack: str,
    by: str,
    *,
    ibp: str = "",
    note: str = "",
) -> dict[str, str]:
    plain = (re.sub(r"\[\d\]$", "", cell) for cell in (eps, method))
    keys = [
        "table",
        "dataset",
        "eps",
        "method",
        "model",
        "standard_error",
        "verified_error",
        "pgd_error",
        "verifier",
        "ibp_error",
        "note",
    ]
    return dict(
        zip(keys, (f"tab:{table}", data, *plain, model, standard, verified, attack, by, ibp, note), strict=True)
    )


def _in_groups(cells: list[str], size: int) -> list[list[str]]:
    return [cells[k : k + size] for k in range(0, len(cells), size)]


def test_only_errors_of_1000_images_have_one_decimal() -> None:
    """Table D: what the note says of image counts agrees with the digits. IBP's and PGD's errors are of all images."""
    rows = [row for row in expected_rows(pinned_tables()) if row["table"] == "tab:post_robustness"]
    assert all(row["verified_error"].endswith("0") for row in rows if row["note"])
    others = [row["verified_error"] for row in rows if not row["note"]]
    others += [row[key] for row in rows for key in ("pgd_error", "ibp_error") if row[key]]
    assert sum(not error.endswith("0") for error in others) > 0.8 * len(others)


# recipe/shipped/paper


def test_all_recipes_are_checked() -> None:
    folder = resources.files("advibp.recipe") / "shipped" / "paper"
    assert sorted(file.name for file in folder.iterdir()) == sorted(f"{name}.yaml" for name in RECIPES)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_numbers(name: str, source: str) -> None:
    data, at = name.split("-")
    values = dict(hyperparameters_of(source)[data])
    expected = READINGS | {"data": data, "published": expected_published(tables_of(source), name)}
    expected |= {"lr_factor": 1 / values["lr_divisor"], "c_max": values[f"c_max at {at}"]}
    same = "warmup_natural warmup_adversarial ramp c_extra c_decay beta1 beta2 batch_size lr stage_epochs stage_lr"
    expected |= {key: values[key] for key in same.split()}
    expected["lr_milestones"] = list(values["lr_milestones"])
    assert values["lr_divisor"] == values["stage_lr_divisor"]  # a recipe has one factor for both
    if data == "mnist":
        expected["eps"] = float(at)
        expected["epochs"] = sum(values[k] for k in ("warmup_natural", "warmup_adversarial", "epochs_after_warmup"))
        expected["stage_lr_milestones"] = list(values["stage_lr_milestones"])
    else:
        expected["eps"] = f"{values['eps_factor'] * int(at):g}/255"
        expected["epochs"] = values["epochs"]
        expected["warmup_adversarial_ramp"] = values["warmup"] - values["warmup_natural"]
        every = int(values["stage_lr_every"])
        expected["stage_lr_milestones"] = list(range(every, int(values["stage_epochs"]), every))
    assert read(f"paper/{name}") == expected


def expected_published(tables: Tables, name: str) -> dict[str, dict[str, list[float | None]]]:
    """AdvIBP's errors at the test radii of a recipe, by network."""
    tested = {"mnist-0.2": ["0.1"], "mnist-0.4": ["0.2", "0.3", "0.4"]}.get(name, [f"{name.split('-')[1]}/255"])
    labels = ("tab:robustness", "tab:full_results") if name.startswith("mnist") else ("tab:results",)
    found: dict[str, dict[str, list[float | None]]] = {}
    for row in expected_rows(tables):
        if row["table"] in labels and row["method"] == "AdvIBP" and row["eps"] in tested:
            errors = [float(row[f"{kind}_error"]) if row[f"{kind}_error"] else None for kind in ERRORS]
            found.setdefault(row["model"].lower(), {})[row["eps"]] = errors
    return found
