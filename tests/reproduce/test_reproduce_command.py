"""Every name, from the command line to its files, on real MNIST at the tiny scale."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import call

from advibp.reproduce import PLANS, Ask, Work
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import error_cells
from advibp.reproduce.run_specs import CIFAR10
from advibp.runs.run_files import read_run

TINY = "--scale tiny --threads 1"


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text("utf-8").splitlines()))


def trained_files(folder: Path) -> dict[Path, int]:
    """When what a training or a certification writes was written."""
    names = ("model.safetensors", "metrics.jsonl", "records.jsonl", "stage-*.safetensors")
    return {p: p.stat().st_mtime_ns for name in names for p in folder.rglob(name)}


@pytest.mark.parametrize("name", PLANS)
def test_a_name_yields_its_table_or_figure(name: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "--data mnist" if name == "cifar-table" else ""
    assert call(f"reproduce {name} {TINY} {other} --out {out}") == 0
    printed = capsys.readouterr().out
    folder = out / name
    assert printed.rstrip().splitlines()[-1].startswith(str(folder))  # it ends by saying where all this is
    rows = rows_of(folder / "table.csv")
    assert rows
    assert all(row["command"].startswith(f"advibp reproduce {name}") and row["machine"] for row in rows)
    for row in rows:  # errors are percentages
        for key in (
            "std",
            "IBP",
            "PGD",
            "std paper",
            "IBP paper",
            "PGD paper",
            "standard",
            "verified (IBP)",
            "complete",
        ):
            if found := re.match(r"[\d.]+", row.get(key, "")):
                assert 0 <= float(found[0]) <= 100
    assert_markdown((folder / "table.md").read_text("utf-8"))
    assert_latex((folder / "table.tex").read_text("utf-8"))
    page = (folder / "report.html").read_text("utf-8")
    assert name in page
    figures = name in ("baseline-figure", "layerwise-figure", "gradient-cases", "theory")
    assert (folder / "figure.svg").exists() == figures
    if figures:
        drawn = ElementTree.parse(folder / "figure.svg")
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) > 20
        assert f"advibp reproduce {name}" in (folder / "figure.svg").read_text("utf-8")


def assert_markdown(text: str) -> None:
    assert "```sh\nadvibp reproduce" in text
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert tables
    for table in tables:
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1


def assert_latex(text: str) -> None:
    """Environments close as they open, and every row has as many cells as there are columns."""
    assert "% advibp reproduce" in text
    open_now: list[str] = []
    columns = 0
    for line in text.splitlines():
        if line.startswith("%"):
            continue
        if begun := re.match(r"\\begin\{(\w+)\}(?:\{(l+)\})?", line):
            open_now.append(begun[1])
            columns = len(begun[2] or "")
        elif ended := re.match(r"\\end\{(\w+)\}", line):
            assert open_now.pop() == ended[1]
        elif line.endswith(r"\\"):
            assert open_now[-1] == "tabular"
            assert len(re.split(r"(?<!\\)&", line)) == columns
        assert not re.search(r"(?<!\\)[#%_]", line)
        assert len(re.findall(r"(?<!\\)\$", line)) % 2 == 0
        assert line.isascii()
    assert open_now == []


def test_what_is_printed_is_what_the_records_say(out: Path) -> None:
    assert call(f"reproduce mnist-table {TINY} --out {out}") == 0
    rows = rows_of(out / "mnist-table" / "table.csv")
    assert [row["method"] for row in rows] == ["crown-ibp", "advibp", "advcrown-ibp", "ibp", "fixed"]
    published = {"crown-ibp": "3.44", "advibp": "3.69", "advcrown-ibp": "3.19", "ibp": "", "fixed": ""}
    for row in rows:
        run = read_run(out / f"mnist-a-{row['method']}-0.2-2e-300n-s0")
        assert run.last is not None
        assert len(run.last.records) in (40, 80)  # of the table, and of the baseline's second radius
        errors = run.last.errors(0.1)
        assert errors.images == 40
        numbers = (errors.standard, errors.verified["ibp"], errors.attack)
        assert [row["std"], row["IBP"], row["PGD"]] == [f"{number:.2f}" for number in numbers]
        assert row["IBP paper"] == published[row["method"]]
        assert row["IBP diff."] == ""  # a stand-in is not compared
        assert row["epochs"] == "2"


def test_a_second_call_trains_and_certifies_nothing(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"reproduce cnn-table {TINY} --out {out}") == 0
    table, before = (out / "cnn-table" / "table.csv").read_text(), trained_files(out)
    capsys.readouterr()
    assert call(f"reproduce cnn-table {TINY} --out {out}") == 0
    assert trained_files(out) == before
    assert (out / "cnn-table" / "table.csv").read_text() == table
    printed = capsys.readouterr().out
    assert printed.count("(reused: ") == 2
    assert "certifying" not in printed


def test_a_dry_run_writes_nothing_and_knows_what_is_there(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(f"reproduce mnist-table {TINY} --methods ibp fixed --dry-run --out {tmp_path / 'new'}") == 0
    printed = "".join(capsys.readouterr().out.split())
    assert "mnist-a-ibp-0.2-2e-300n-s0" in printed
    assert "--methodibp--eps0.2--epochs2" in printed
    assert re.search(r"Training:about\d+:\d\dintotal", printed)
    assert printed.count("trained") >= 2
    assert not (tmp_path / "new").exists()
    assert call(f"reproduce cnn-table {TINY} --out {out}") == 0
    capsys.readouterr()
    assert call(f"reproduce cnn-table {TINY} --dry-run --out {out}") == 0
    printed = capsys.readouterr().out
    assert "Training: about 0:00 in total" in printed


def test_narrowing_and_several_seeds(tmp_path: Path) -> None:
    assert call(f"reproduce mnist-table {TINY} --model a --methods ibp --seeds 0 1 --eps 0.1 --out {tmp_path}") == 0
    (row,) = rows_of(tmp_path / "mnist-table" / "table.csv")
    assert (row["net"], row["method"], row["eps"]) == ("a", "ibp", "0.1")
    runs = [read_run(tmp_path / f"mnist-a-ibp-0.2-2e-300n-s{seed}").last for seed in (0, 1)]
    values = sorted(run.errors(0.1).standard for run in runs if run)
    assert row["std"] == f"{sum(values) / 2:.2f} ({values[0]:.2f}–{values[1]:.2f})"
    assert [folder.name for folder in tmp_path.iterdir() if folder.name.startswith("mnist-a")] == sorted(
        f"mnist-a-ibp-0.2-2e-300n-s{seed}" for seed in (0, 1)
    ) or len(list(tmp_path.glob("mnist-a-*"))) == 2
    notes = (tmp_path / "mnist-table" / "table.md").read_text()
    assert "Mean of the seeds 0, 1" in notes
    assert "chosen on the test set" in notes


def test_differences_only_for_the_papers_nets(out: Path) -> None:
    assert call(f"reproduce cifar-table {TINY} --data mnist --out {out}") == 0
    text = (out / "cifar-table" / "table.md").read_text()
    assert "Measured on mnist, not on the paper's CIFAR-10" in text
    rows = rows_of(out / "cifar-table" / "table.csv")
    assert all(row["IBP diff."] == "" for row in rows)
    reported = [row for row in rows if row["net"] == "best reported"]
    assert [(row["method"], row["IBP paper"]) for row in reported][2] == ("COLT", "72.50 (RefineZono)")


def test_verified_errors_are_compared_by_verifier(tmp_path: Path) -> None:
    """CROWN-IBP at 2/255: ours by CROWN beside the paper's by CROWN. A run verified by IBP alone gets no difference."""
    tiny = Ask(scale="tiny", data="mnist", eps=(2 / 255,), folders=(tmp_path,), where={"threads": 1})
    crown_ibp, advibp = (Work(tiny).measure(one) for one in PLANS["cifar-table"].specs(tiny))
    errors = crown_ibp.errors(2 / 255)
    assert set(errors.verified) == {"ibp", "crown"}
    _, _, _, ours, paper, difference, *_ = cells_of(crown_ibp)
    assert (ours, paper) == (f"{errors.verified['crown']:.2f} (CROWN)", "52.57 (CROWN)")
    assert float(difference) == pytest.approx(errors.verified["crown"] - 52.57, abs=0.01)
    _, _, _, ours, paper, difference, *_ = cells_of(advibp)
    assert (ours, paper) == (f"{advibp.errors(2 / 255).verified['ibp']:.2f}", "56.00")
    assert difference
    recipe = crown_ibp.spec.recipe.changed(beta=0)
    by_ibp = dataclasses.replace(crown_ibp.spec, recipe=recipe, tasks=advibp.spec.tasks, name="by-ibp")
    _, _, _, ours, paper, difference, *_ = cells_of(Work(tiny).measure(by_ibp))
    assert "CROWN" not in ours
    assert (paper, difference) == ("52.57 (CROWN)", "")


def cells_of(one: Measured) -> list[str]:
    """As if it were a fast run of dm-small, which is compared."""
    spec = dataclasses.replace(one.spec, recipe=one.spec.recipe.changed(net="dm-small"))
    run = dataclasses.replace(one, spec=spec)
    return error_cells([run], 2 / 255, Ask(), CIFAR10, "results", ("dm-small",))


def test_the_figures_say_what_their_tables_say(out: Path) -> None:
    assert call(f"reproduce layerwise-figure {TINY} --out {out}") == 0
    rows = rows_of(out / "layerwise-figure" / "table.csv")
    assert [(row["eps"], row["stage"]) for row in rows] == [(eps, stage) for eps in ("0.1", "0.2") for stage in "0123"]
    run = out / "mnist-a-advibp-0.2-2e-allx1e-300n-s0"
    errors = {}
    for row in rows:
        said = json.loads((run / f"certify-stage-{row['stage']}" / "summary.json").read_text())
        errors[row["eps"], row["stage"]] = said["percent"][row["eps"]]["verified_error"]
        assert float(row["verified (IBP)"]) == errors[row["eps"], row["stage"]]
    for row in rows_of(out / "layerwise-figure" / "table-2.csv"):
        first, every = (errors[row["eps"], "0"] - errors[row["eps"], stage] for stage in "23")
        assert (row["runs"], row["stages"]) == ("1", "3")
        assert float(row["gain of the first two"]) == pytest.approx(first)
        assert float(row["gain of all"]) == pytest.approx(every)
        share = row["share of the first two, %"]
        assert share == (f"{100 * first / every:.0f}" if every > 0 else "no gain")


def test_models_are_ranked(out: Path) -> None:
    assert call(f"reproduce models-table {TINY} --out {out}") == 0
    ranks, nets = (rows_of(out / "models-table" / name) for name in ("table.csv", "table-2.csv"))
    for eps in ("0.2", "0.3"):
        for method in ("crown-ibp", "advibp"):
            numbers = [float(row["IBP"]) for row in nets if (row["eps"], row["method"]) == (eps, method)]
            best, median, worst = (float(row["IBP"]) for row in ranks if (row["eps"], row["method"]) == (eps, method))
            assert (best, worst) == (min(numbers), max(numbers))
            assert best <= median <= worst
    text = (out / "models-table" / "table.md").read_text()
    assert re.search(
        r"eps 0.2: advibp has a lower verified error than crown-ibp on \d of 2 nets \(paper: 9 of 10\)", text
    )


def test_stronger_verifiers_leave_no_more_open(out: Path) -> None:
    assert call(f"reproduce post-verification {TINY} --out {out}") == 0
    for row in rows_of(out / "post-verification" / "table.csv"):
        errors = [float(row[name]) for name in ("IBP", "CROWN", "alpha-CROWN", "RefineZono", "complete", "PGD")]
        assert errors == sorted(errors, reverse=True)
        assert row["more robust"] in (("",) if row["method"] == "crown-ibp" else ("yes", "no"))
        paper = {"crown-ibp": ("3.44", ""), "advibp": ("3.69", "2.90")}[row["method"]]
        assert (row["IBP paper"], row["RefineZono paper"]) == paper


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("reproduce tables", "'tables' is not a table or figure; choose from cifar-table"),
        ("reproduce mnist-table --model tiny-net", "'tiny-net' is not a network"),
        ("reproduce mnist-table --methods magic", "'magic' is not a method"),
        ("reproduce mnist-table --eps 0.25", "eps 0.25 is not in this table; choose from 0.1, 0.2, 0.3, 0.4"),
        ("reproduce cifar-table --eps 0.3", "choose from 2/255, 8/255, 16/255"),
        ("reproduce theory --model a", "theory does not support a choice of models; leave --model out"),
        ("reproduce training-time --eps 0.1", "leave --eps out"),
        ("reproduce mnist-table --reuse nowhere", "nowhere is not a folder"),
        ("reproduce mnist-table --scale huge", "'huge' is not valid"),
        ("reproduce mnist-table --seeds -1", "integer from 0"),
    ],
)
def test_error_messages(command: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"{command} --out {tmp_path}") == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []
