"""Browsing the records on the page: filters, order, numbers, details, CSV, confusion matrix, comparison of runs."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import call

from advibp.data import load
from advibp.report.html import write_page
from advibp.report.shown_images import Source
from advibp.runs.run_files import RunFiles, read_run
from advibp.verify.records import Record
from conftest import Browser

_TILES = "return [...document.querySelectorAll('#tiles .caption small')].map(node => Number(node.textContent.slice(1)))"
_PRESS = """[...document.querySelectorAll('.filters button')].find(button =>
    button.textContent.startsWith(arguments[0])).click();"""
_SELECT = """const box = [...document.querySelectorAll('#images select')].find(s => s.ariaLabel === arguments[0]);
    box.value = arguments[1]; box.dispatchEvent(new Event('change'));"""
_MOVE = """const slider = document.querySelector('#eps'); slider.value = arguments[0];
    slider.dispatchEvent(new Event('input', {bubbles: true}));"""
_DRAWN = """const done = arguments[0], test = () => {
    const all = [...document.querySelectorAll('#tiles canvas')];
    all.length && all.every(c => c.dataset.drawn) ? done(all.map(c => [c.width, c.height])) : setTimeout(test, 20); };
    test();"""
_KEY = """document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))"""


@pytest.fixture(scope="module")
def page(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browse") / "report.html"
    assert call(f"report {trained['first']} {trained['second']} --out {out}") == 0
    return out


def records(trained: dict[str, Path], eps: float, name: str = "first") -> list[Record]:
    run = read_run(trained[name])
    assert run.last is not None
    return [r for r in run.last.records if r.eps == eps]


def open_at(browser: Browser, page: Path, eps: str) -> None:
    browser.open(page)
    browser.run(_MOVE, [e["text"] for e in browser.run("return DATA.eps")].index(eps))


def test_filters_and_orders_show_the_right_images(browser: Browser, page: Path, trained: dict[str, Path]) -> None:
    open_at(browser, page, "0.05")
    every = records(trained, 0.05)
    for text, verdicts in (("misclass", {"misclassified"}), ("broken", {"falsified"}), ("undec", {"unknown"})):
        browser.run(_PRESS, text)
        assert sorted(browser.run(_TILES)) == [r.index for r in every if r.verdict in verdicts]
    browser.run(_PRESS, "proved")
    margins = {r.index: r.lower_margin or 0.0 for r in every}
    shown = browser.run(_TILES)
    assert len(shown) == sum(r.verdict == "robust" for r in every)
    assert [margins[k] for k in shown] == sorted(margins[k] for k in shown)
    label = every[0].label
    browser.run(_SELECT, "class", str(label))
    browser.run(_SELECT, "order", "number")
    browser.run(_PRESS, "all")
    assert browser.run(_TILES) == [r.index for r in every if r.label == label]
    assert browser.errors() == []


def test_all_images_can_be_reached_by_pages(browser: Browser, page: Path) -> None:
    open_at(browser, page, "0.05")
    browser.run(_PRESS, "all")
    browser.run(_SELECT, "order", "number")
    assert browser.run(_TILES) == list(range(48))
    assert "1 – 48 of 60" in browser.text("#images .pager")
    browser.run("document.querySelector('[aria-label=\"next images\"]').click()")
    assert browser.run(_TILES) == list(range(48, 60))
    assert browser.run("return document.querySelector('[aria-label=\"next images\"]').disabled")


def test_pictures_are_drawn_with_the_pixels_of_the_images(browser: Browser, page: Path) -> None:
    open_at(browser, page, "0.05")
    browser.run(_PRESS, "all")
    browser.run(_SELECT, "order", "number")
    assert set(map(tuple, browser.driver.execute_async_script(_DRAWN))) == {(28, 28)}
    drawn = browser.run(
        """const canvas = document.querySelectorAll('#tiles canvas')[3];
        return [...canvas.getContext('2d').getImageData(0, 0, 28, 28).data].filter((_, k) => k % 4 === 0)"""
    )
    x, _ = load("mnist").test.take(4).batch(torch.tensor([3]))
    assert drawn == (255 * x).round().int().flatten().tolist()


def test_an_image_is_found_by_its_number(browser: Browser, page: Path, trained: dict[str, Path]) -> None:
    open_at(browser, page, "0.05")
    go = """document.querySelector('#images input[type=number]').value = arguments[0];
        document.querySelector('#images form button').click();"""
    browser.run(go, 17)
    (record,) = [r for r in records(trained, 0.05) if r.index == 17]
    text = browser.text("dialog")
    assert f"Test image 17: class {record.label}" in text
    rows = browser.run("return [...document.querySelectorAll('dialog tbody tr')].map(row => row.innerText)")
    assert [("first" in row, "second" in row) for row in rows] == [(True, False)] * 2 + [(False, True)] * 2
    assert "null" not in text
    browser.run("document.querySelector('dialog [aria-label=close]').click()")
    assert browser.run("return document.querySelector('dialog')") is None
    browser.run(go, 777)
    assert "Test image 777 was not certified at eps 0.05." in browser.text("#images")


def test_the_keyboard_moves_between_images(browser: Browser, page: Path) -> None:
    open_at(browser, page, "0.05")
    browser.run(_PRESS, "proved")
    first, second = browser.run(_TILES)[:2]
    browser.run("document.querySelector('#tiles button').focus()")
    browser.run(_KEY, "ArrowRight")
    assert f"image {second}," in browser.run("return document.activeElement.ariaLabel")
    browser.run(_KEY, "ArrowLeft")
    browser.run("document.activeElement.click()")
    assert f"Test image {first}:" in browser.text("dialog")
    browser.run("document.querySelector('dialog').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))")
    assert f"Test image {second}:" in browser.text("dialog")
    unnamed = browser.run(
        """return [...document.querySelectorAll('button, select, input')].filter(node =>
            !(node.ariaLabel || node.innerText?.trim() || node.closest('label')?.innerText.trim()))
            .map(node => node.outerHTML)"""
    )
    assert unnamed == []


def test_the_csv_has_all_records(browser: Browser, page: Path, trained: dict[str, Path]) -> None:
    browser.open(page)
    rows = list(csv.DictReader(io.StringIO(browser.run("return toCsv(everyRecord())"))))
    radii = {"first": (0.01, 0.05), "second": (0.01, 0.02)}
    expected = [(name, r) for name in radii for eps in radii[name] for r in records(trained, eps, name)]
    assert len(rows) == len(expected)
    for row, (name, r) in zip(rows, expected, strict=True):
        assert [row["run"], float(row["eps"]), int(row["image"]), row["verdict"]] == [name, r.eps, r.index, r.verdict]
        assert row["decided_by"] == (r.by or "")
    assert any(row["radius_proved"] for row in rows)
    clicked = browser.run(
        """let made = null; const old = URL.createObjectURL;
        URL.createObjectURL = (blob) => { made = [blob.type, blob.size]; return old.call(URL, blob); };
        document.querySelector('.downloads button').click(); URL.createObjectURL = old; return made"""
    )
    assert clicked[0] == "text/csv"
    assert clicked[1] > 100
    assert browser.errors() == []


def test_cells_of_the_csv_are_no_formulas(browser: Browser, page: Path) -> None:
    browser.open(page)
    cells = ['=HYPERLINK("x")', "+1", "a,b", 'say "x"', -1.5, None]
    assert browser.run("return arguments[0].map(csvCell)", cells) == [
        '"\'=HYPERLINK(""x"")"', "'+1", '"a,b"', '"say ""x"""', "-1.5", ""
    ]  # fmt: skip


def test_the_confusion_matrix_counts_and_shows_its_images(
    browser: Browser, page: Path, trained: dict[str, Path]
) -> None:
    open_at(browser, page, "0.05")
    every = records(trained, 0.05)
    assert f"{sum(r.verdict == 'misclassified' for r in every)} of 60 images are misclassified" in browser.text(
        "#confusion"
    )
    wrong = next(r for r in every if r.verdict == "misclassified")
    cell = f"return document.querySelectorAll('.matrix tbody tr')[{wrong.label}].cells[{wrong.prediction + 1}]"
    same = [r.index for r in every if (r.label, r.prediction) == (wrong.label, wrong.prediction)]
    assert browser.run(f"{cell}.innerText") == str(len(same))
    browser.run(f"{cell}.querySelector('button').click()")
    assert sorted(browser.run(_TILES)) == same


def test_runs_are_compared_image_by_image(browser: Browser, page: Path, trained: dict[str, Path]) -> None:
    open_at(browser, page, "0.01")
    rows = browser.run(
        "return [...document.querySelectorAll('#pairs tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    proved = [{r.index for r in records(trained, 0.01, name) if r.verdict == "robust"} for name in ("first", "second")]
    counts = [60, len(proved[0] & proved[1]), len(proved[0] - proved[1]), len(proved[1] - proved[0])]
    assert rows[0][2:7] == ["proved", *map(str, counts)]
    assert rows[0][7].startswith("p ")
    assert len(rows) == 2
    browser.run(_MOVE, 2)
    assert "No two of the shown runs" in browser.text("#pairs")


def changed(run: RunFiles, **changes: Any) -> RunFiles:
    assert run.last is not None
    return dataclasses.replace(run, certified={None: dataclasses.replace(run.last, **changes)})


def test_points_on_different_images_are_told_apart(browser: Browser, tmp_path: Path, trained: dict[str, Path]) -> None:
    run = read_run(trained["first"])
    assert run.last is not None
    kept = [r for r in run.last.records if r.eps == 0.01 or r.index >= 20]
    write_page(tmp_path / "page.html", [changed(run, records=kept, radii=run.last.radii[:20])])
    browser.open(tmp_path / "page.html")
    text = browser.text("#accuracy")
    assert "Not the same images" in text
    assert "eps 0.01: the first 60 test images; eps 0.05: a sample of 40 test images from 0 to 59" in text
    assert "On the first 20 test images." in text
    points = browser.run("return document.querySelectorAll('#accuracy .plot')[0].data.map(t => t.x)")
    assert points == [[0, 0.01]] * 2 + [[0, 0.05]] * 2  # not connected
    markers = browser.run("return document.querySelectorAll('#accuracy .plot')[1].data.at(-1)")
    first = [r for r in run.last.records if r.eps == 0.01 and r.index < 20]
    assert markers["x"] == [0.01]  # at 0.05 the 20 images were not certified
    assert markers["y"] == [pytest.approx(100 * sum(r.verdict == "robust" for r in first) / 20)]
    assert browser.errors() == []


def test_names_of_classes_and_classes_without_proofs(
    browser: Browser, tmp_path: Path, trained: dict[str, Path]
) -> None:
    run = read_run(trained["first"])
    assert run.last is not None
    without = [
        dataclasses.replace(r, verdict="unknown", by=None) if r.label == 1 and r.verdict == "robust" else r
        for r in run.last.records
    ]
    names = [f"<i>digit {k}</i>" for k in range(10)]
    write_page(
        tmp_path / "page.html", [changed(run, records=without)], images=[Source(load("mnist").test, names)], count=0
    )
    browser.open(tmp_path / "page.html")
    assert "No image of class 1 (<i>digit 1</i>) is proved at eps 0.05" in browser.text("#glance .warning")
    assert "<i>digit 4</i>" in browser.text("#confusion")
    assert "<i>digit" in browser.text("#tiles")
    assert "not in the page" in browser.text("#tiles")
    assert "pictures of 0 of 60 images" in browser.text("#images")
    assert browser.run("return document.querySelectorAll('#main i:not(.swatch):not(.dash)').length") == browser.run(
        "return document.querySelectorAll('.proportions i').length"
    )
    assert browser.errors() == []


def test_long_class_names_fit_a_phone(browser: Browser, tmp_path: Path, trained: dict[str, Path]) -> None:
    animals = [f"class_{k}_with_a_very_long_name" for k in range(5)]
    names = ["airplane", "automobile", "cat", "ship", "truck", *animals]
    source = Source(load("mnist").test, names)
    write_page(tmp_path / "page.html", [read_run(trained["first"])], images=[source])
    browser.open(tmp_path / "page.html", width=360)
    cut = """return [...document.querySelectorAll('.wide, .matrix')]
        .filter(node => node.scrollWidth > node.clientWidth + 1).map(node => node.className + node.scrollWidth)"""
    assert browser.run(cut) == []
    assert browser.run("return document.documentElement.scrollWidth") <= 360


def test_confusions_of_many_classes_are_listed(browser: Browser, tmp_path: Path, trained: dict[str, Path]) -> None:
    run = read_run(trained["first"])
    assert run.last is not None
    many = [dataclasses.replace(r, label=r.label + 30, prediction=r.prediction + 30) for r in run.last.records]
    write_page(tmp_path / "page.html", [changed(run, records=many)])
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.querySelectorAll('.matrix').length") == 0
    pairs = {(r.label, r.prediction) for r in many if r.verdict == "misclassified"}
    assert browser.run("return document.querySelectorAll('#confusion tbody tr').length") == min(20, len(pairs))
    assert browser.errors() == []
