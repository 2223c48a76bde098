"""The page in a browser, without a network connection."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from commands import call
from hypothesis import given
from hypothesis import strategies as st

from advibp.data import load
from advibp.report.html import page_data, render, to_json, write_page
from advibp.report.sections import ChartSection, Series, TableSection
from advibp.report.shown_images import Source
from advibp.runs.run_files import RunFiles, read_run
from advibp.verify.confidence import wilson
from advibp.verify.records import RecordFile
from advibp.verify.verifiers import VERIFIERS, Proof, Verifier
from conftest import Browser

_HOSTILE = (
    "</script><script>window.broken=1</script><img src=x onerror=window.broken=1><b>bold</b> %{x} &lt; \u2028 $x$"
)
_RUN_NAME = "<img src=x onerror=window.broken=1><b>bold<b> &amp; %{y}"

# Every figure's traces, as Plotly drew them: how many paths have a size.
_INK = """return [...document.querySelectorAll('.plot')].map(plot => [...plot.querySelectorAll(
    '.scatterlayer path, .barlayer path')].filter(path => {
        const box = path.getBoundingClientRect(); return box.width + box.height > 1; }).length)"""
_MOVE = """const slider = document.querySelector('#eps'); slider.value = arguments[0];
    slider.dispatchEvent(new Event('input', {bubbles: true}));"""
_FIGURE = "return JSON.stringify(document.querySelector(arguments[0] + ' .plot').data.map(t => [t.x, t.y, t.base]))"
_TEXTS = "return [...document.querySelectorAll(arguments[0])].map(node => node.textContent)"
_COLORS = """return [...document.querySelectorAll('.plot')].map(plot =>
    JSON.stringify((plot.data ?? []).map(t => [t.line?.color, t.marker?.color])))"""


@pytest.fixture(scope="module")
def page(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three runs."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert call(f"report {' '.join(str(path) for path in trained.values())} --out {out}") == 0
    return out


def shown(browser: Browser, tmp_path: Path, runs: list[RunFiles], **more: Any) -> None:
    write_page(tmp_path / "page.html", runs, **more)
    browser.open(tmp_path / "page.html")


def test_three_runs_draw_all_figures_without_errors_or_requests(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert page.stat().st_size < 5e6
    assert browser.errors() == []
    asked = browser.requests()
    assert asked
    assert {urlsplit(url).scheme for url in asked} <= {"file", "data", "blob"}
    assert [url for url in asked if url.startswith("file:")] == [page.as_uri()]
    ink = browser.run(_INK)
    assert len(ink) == 5 + 8  # gap, accuracy, accuracy from radii, radii, classes; panels of training
    assert min(ink) >= 1


def test_the_numbers_are_those_of_the_records(browser: Browser, page: Path, trained: dict[str, Path]) -> None:
    browser.open(page)
    certified = read_run(trained["first"]).last
    assert certified is not None
    rows = browser.run(
        "return [...document.querySelectorAll('#glance tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))"
    )
    for eps in certified.eps:
        errors, (row,) = certified.errors(eps), [r for r in rows if r[:2] == [f"{eps:g}", "first"]]
        percents = [errors.standard, errors.attack, *errors.verified.values()]
        intervals = [wilson(round(value * errors.images / 100), errors.images) for value in percents]
        assert [cell.split("\n") for cell in row[2:]] == [
            [str(errors.images)],
            *(
                [f"{value:.2f} %", f"{100 * low:.2f} – {100 * high:.2f}"]
                for value, (low, high) in zip(percents, intervals, strict=True)
            ),
            [f"{errors.best - errors.attack:.2f}"],
        ]
    browser.run(_MOVE, [e["text"] for e in browser.run("return DATA.eps")].index("0.05"))
    counts = certified.counts(0.05)
    card = browser.text("#glance .card")
    assert f"{counts['robust']} of 60 test images are proved at eps 0.05 by IBP and CROWN" in card
    assert f"The attack broke {counts['falsified']}; {counts['unknown']} are undecided" in card


def test_the_slider_moves_all_that_depends_on_eps(browser: Browser, page: Path) -> None:
    browser.open(page)
    seen = {}
    for place in (0, 2):
        browser.run(_MOVE, place)
        texts = [browser.text(f"#{part}") for part in ("radius", "glance .cards", "cascade")]
        seen[place] = [
            *texts,
            browser.run(_FIGURE, "#classes"),
            browser.text("#images"),
            browser.run("return JSON.stringify(document.querySelector('#glance .plot').layout.shapes)"),
            browser.run("return document.querySelector('#glance tr.marked').innerText"),
        ]
    assert all(before != after for before, after in zip(seen[0], seen[2], strict=True))
    ranges = "return document.querySelector('#glance .plot').layout.yaxis.range"
    browser.run(_MOVE, 0)
    whole = browser.run(ranges)  # that of all eps
    browser.run("document.querySelector('#zoom').click()")
    assert browser.run(ranges)[1] < whole[1]
    assert browser.errors() == []


def test_a_run_that_is_switched_off_leaves_all_figures_and_comes_back(browser: Browser, page: Path) -> None:
    browser.open(page)
    all_colors = browser.run(_COLORS)
    gone = browser.run("return runColor(0)")
    browser.run("document.querySelectorAll('#runs input')[0].click()")
    assert not any(gone in drawn for drawn in browser.run(_COLORS))
    assert (
        browser.run("return [...document.querySelectorAll('.card h3')].filter(h => h.innerText === 'first').length")
        == 0
    )
    browser.run(
        "document.querySelectorAll('#runs input')[1].click(); document.querySelectorAll('#runs input')[2].click()"
    )
    assert "No run is selected" in browser.text("#glance")
    for k in range(3):
        browser.run("document.querySelectorAll('#runs input')[arguments[0]].click()", k)
    assert browser.run(_COLORS) == all_colors
    assert min(browser.run(_INK)) >= 1
    assert browser.errors() == []


def test_light_and_dark_follow_the_system_until_they_are_chosen(browser: Browser, page: Path) -> None:
    looks = """return [getComputedStyle(document.body).backgroundColor,
        document.querySelector('#glance .plot').layout.font.color]"""
    browser.open(page)
    light = browser.run(looks)
    browser.open(page, dark=True)
    dark = browser.run(looks)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    browser.run("document.querySelector('#theme').click()")
    assert browser.run(looks) == light
    browser.run("localStorage.clear()")


@pytest.mark.parametrize("width", [360, 390])
def test_nothing_is_cut_off_on_a_phone(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.run("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    browser.run("document.querySelector('#tiles button').click()")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    outside = browser.run(
        """return [...document.querySelectorAll('main *, dialog *')].filter(node =>
            node.getBoundingClientRect().right > arguments[0] + 1
            || (node.matches('.wide, .matrix, dialog') && node.scrollWidth > node.clientWidth + 1))
            .map(node => node.tagName + '.' + node.className)""",
        width,
    )
    assert outside == []


@pytest.fixture
def hostile(trained: dict[str, Path], tmp_path: Path) -> list[RunFiles]:
    """A run whose folder, recipe, metrics and records say what no page should run."""
    folder = tmp_path / _RUN_NAME
    shutil.copytree(trained["first"], folder)
    run = read_run(folder)
    assert run.last is not None
    said = {**run.recipe, "net": _HOSTILE, "__proto__": _HOSTILE, "constructor": 3, _HOSTILE: [_HOSTILE]}
    summary = {**(run.summary or {}), "command": f"advibp train {_HOSTILE}", "hardware": {"machine": _HOSTILE}}
    history = [{**epoch, "phase": _HOSTILE, "loss_lower": math.nan} for epoch in run.history]
    records = [
        dataclasses.replace(r, by=r.by and _HOSTILE, attack=_HOSTILE, provers=_HOSTILE) for r in run.last.records
    ]
    certified = {None: dataclasses.replace(run.last, records=records)}
    return [dataclasses.replace(run, recipe=said, summary=summary, history=history, certified=certified)]


def test_hostile_strings_are_shown_and_not_run(browser: Browser, tmp_path: Path, hostile: list[RunFiles]) -> None:
    classes = [f"{_HOSTILE} {label}" for label in range(10)]
    sections = [
        TableSection(title=_HOSTILE, head=[_HOSTILE, "b"], rows=[[_HOSTILE, ""]], notes=[_HOSTILE], command=_HOSTILE),
        ChartSection(
            title=_HOSTILE, x=_HOSTILE, y=_HOSTILE, series=[Series(name=_HOSTILE, x=[_HOSTILE, "b"], y=[1, 2])]
        ),
    ]
    source = Source(load("mnist").test, classes)
    runs = [*hostile, *(dataclasses.replace(run, path=tmp_path / "other" / _RUN_NAME) for run in hostile)]
    shown(browser, tmp_path, runs, sections=sections, title=_HOSTILE, images=[source, source])
    browser.run("document.querySelector('#tiles button').click()")
    assert "<b>bold</b> %{x}" in browser.text("dialog h3")
    assert all("<b>bold</b> %{x}" in cell for cell in browser.run(_TEXTS, ".matrix th"))
    browser.run("document.querySelector('dialog').close()")
    read = browser.text()
    for text in (_HOSTILE.split("\u2028")[0], _RUN_NAME):
        assert text.strip() in read
    drawn = browser.run("return [...document.querySelectorAll('svg text')].map(text => text.textContent)")
    assert any("<b>bold</b> %{x} &lt;" in text for text in drawn)  # axis titles, categories, classes
    assert browser.run("return document.title") == _HOSTILE
    hovered = browser.run(
        """const plot = document.querySelector('#glance .plot');
        Plotly.Fx.hover(plot, [{curveNumber: 0, pointNumber: 0}]);
        return plot.querySelector('.hoverlayer').textContent"""
    )
    assert _RUN_NAME in hovered
    assert browser.run("return [window.broken, document.querySelectorAll('img[onerror]').length]") == [None, 0]
    assert browser.errors() == []


def test_injected_scripts_do_not_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run(
        """document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.broken = 1'}));
        document.body.insertAdjacentHTML('beforeend', '<img src="data:," onerror="window.broken = 1">');"""
    )
    failed = browser.driver.execute_async_script(
        """const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('sent'), error => done('refused'))"""
    )
    assert failed == "refused"
    assert browser.run("return window.broken") is None
    assert any("Content Security Policy" in told for told in browser.errors())
    assert not any(url.startswith("http") for url in browser.requests())


def test_sections_need_no_runs(browser: Browser, tmp_path: Path) -> None:
    series = [
        Series(name="low", x=[1, 2, 3], y=[1.0, 10.0, 100.0], low=[0.5, 9, 90], high=[2, 12, 120]),
        Series(name="high", x=[1, 2, 3], y=[2.0, math.nan, 3.0]),
    ]
    words = [Series(name="a", x=["one", "two"], y=[1, 2]), Series(name="b", x=["one", "two"], y=[3, 4])]
    charts = [
        ChartSection(title="Lines", x="eps", y="error", series=series, log=True, notes=["A note."]),
        ChartSection(title="Points", x="eps", y="error", series=series, kind="points", square=True),
        ChartSection(title="Bars", x="kind", y="count", series=words, kind="bar", command="advibp reproduce theory"),
    ]
    table = TableSection(title="Numbers", head=["a", "b"], rows=[["left", "12.5 ± 0.1"]])
    shown(browser, tmp_path, [], sections=[table, *charts], title="Some sections")
    assert min(browser.run(_INK)) >= 2
    assert len(browser.run(_INK)) == 3
    assert browser.errors() == []
    for text in ("Some sections", "12.5 ± 0.1", "A note.", "advibp reproduce theory"):
        assert text in browser.text()
    assert browser.run("return document.querySelectorAll('#controls').length") == 0


def test_a_browser_that_cannot_unpack_says_so_and_shows_the_tables(browser: Browser, page: Path) -> None:
    browser.open(page, before="delete window.DecompressionStream")
    assert "can't unpack the figures" in browser.text("#problem")
    assert "test images are proved" in browser.text("#glance")
    assert browser.run("return document.querySelectorAll('#glance tbody tr').length") > 0


def test_text_and_tables_are_there_before_the_figures(browser: Browser, page: Path) -> None:
    seen = """window.seen = [];
        addEventListener('DOMContentLoaded', () => seen.push(!!window.Plotly, document.body.innerText))"""
    browser.open(page, before=seen)
    unpacked, text = browser.run("return window.seen")
    assert not unpacked
    assert "test images are proved" in text
    assert browser.run("return !!window.Plotly")


def test_folders_with_little_in_them(browser: Browser, tmp_path: Path, trained: dict[str, Path]) -> None:
    """Neither finished nor certified; numbers alone; records without counterexamples and without their data."""
    begun, lost = tmp_path / "begun", tmp_path / "lost"
    begun.mkdir()
    shutil.copy(trained["first"] / "recipe.yaml", begun)
    shutil.copytree(trained["first"], lost, ignore=shutil.ignore_patterns("counterexamples", "model.safetensors"))
    recipe = (lost / "recipe.yaml").read_text()
    assert 'data: "mnist"' in recipe
    (lost / "recipe.yaml").write_text(recipe.replace('data: "mnist"', f'data: "{tmp_path}/nowhere.npz"'))
    out = tmp_path / "report.html"
    for folders in ([begun], [trained["bare"]], [lost], [begun, trained["bare"], lost]):
        assert call(f"report {' '.join(map(str, folders))} --out {out}") == 0
        browser.open(out)
        assert browser.errors() == []
        text = browser.text()
        assert ("Nothing is certified yet" in text) == (folders == [begun])
        assert ("no images are shown" in text) == (lost in folders)
        assert ("nowhere.npz" in browser.text("#main")) == (lost in folders)


def test_the_page_shows_a_verifier_that_is_added_to_the_table(
    browser: Browser, tmp_path: Path, trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VERIFIERS, "newest", Verifier(label="Newest verifier", tighten=Proof.ibp))
    path = tmp_path / "run"
    (path / "certify").mkdir(parents=True)
    shutil.copy(trained["first"] / "recipe.yaml", path)
    summary = {
        "percent": {"0.1": {"standard_error": 10.0, "attack_error": 20.0, "verified_error": 40.0}},
        "by": ["newest", "ibp"],
        "images": 10,
        "attack": "pgd steps=1",
        "flow": {
            "0.1": [
                {"by": by, "verdict": verdict, "images": images, "seconds": 0.1}
                for by, verdict, images in (
                    ("newest", "robust", 2), ("clean", "misclassified", 1), ("ibp", "robust", 4),
                    ("pgd", "falsified", 1), (None, "unknown", 2),
                )
            ]
        },
    }  # fmt: skip
    (path / "certify" / "summary.json").write_text(json.dumps(summary))
    shown(browser, tmp_path, [read_run(path)])
    assert browser.errors() == []
    assert "by IBP and Newest verifier" in browser.text("#glance")
    checks = browser.run("return [...document.querySelectorAll('#cascade .check b')].map(node => node.textContent)")
    assert checks == ["clean pass", "IBP", "PGD attack", "Newest verifier", "undecided"]


def test_the_command_says_where_the_page_is(
    trained: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)) or True)
    monkeypatch.chdir(tmp_path)
    assert call(f"report {trained['bare']}") == 0
    assert f"{trained['bare'] / 'report.html'} (" in capsys.readouterr().out
    assert opened == []
    assert call(f"report {trained['bare']} {trained['second']} --open") == 0
    assert "report.html (" in capsys.readouterr().out
    assert opened == [(tmp_path / "report.html").resolve().as_uri()]


@pytest.mark.parametrize(
    "command",
    [
        "report nowhere",
        "report {bare} --out {bare}",
        "report {bare} --out no/where.html",
        "report {bare} {bare}",
        "report {bare} --images some",
    ],
)
def test_mistakes_are_reported_in_a_sentence(
    command: str, trained: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(command.format(**trained)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_JSON)
def test_json_is_equal_and_closes_no_element(data: Any) -> None:
    text = to_json(data)
    assert json.loads(text) == data
    assert not set(text) & set("<>&\u2028\u2029")


def test_nan_and_infinity_are_null() -> None:
    assert json.loads(to_json({"a": [math.nan, math.inf, (1, -math.inf)]})) == {"a": [None, None, [1, None]]}


def test_the_same_runs_make_the_same_page(trained: dict[str, Path]) -> None:
    pages = {render(*page_data([read_run(trained["bare"])], (), "", ())) for _ in range(2)}
    assert len(pages) == 1


def test_runs_of_one_name_and_rounded_eps_are_distinguished(trained: dict[str, Path], tmp_path: Path) -> None:
    """Two folders called `run`, the second without records: its summary knows 8/255 as 0.0313725."""
    for place, source in (("one", "first"), ("two", "bare")):
        shutil.copytree(trained[source], tmp_path / place / "run")
    records = tmp_path / "one" / "run" / "certify" / "records.jsonl"
    kept = [
        dataclasses.replace(r, eps=8 / 255) if r.eps == 0.05 else r for r in RecordFile.open(records).records.values()
    ]
    records.unlink()
    RecordFile.open(records).add(kept)
    summary = tmp_path / "two" / "run" / "certify" / "summary.json"
    summary.write_text(summary.read_text().replace('"0.05"', '"0.0313725"'))
    data, _ = page_data([read_run(tmp_path / place / "run") for place in ("one", "two")], (), "", ())
    assert [run["name"] for run in data["runs"]] == ["one/run", "two/run"]
    assert [one["text"] for one in data["eps"]] == ["0.01", "8/255"]
    assert [[at["eps"] for at in entry["at"]] for entry in data["entries"]] == [[0.01, 0.0313725]] * 2


def test_the_page_warns_about_a_collapsed_network(browser: Browser, tmp_path: Path, trained: dict[str, Path]) -> None:
    path = tmp_path / "run"
    path.mkdir()
    shutil.copy(trained["first"] / "recipe.yaml", path)
    (path / "summary.json").write_text(json.dumps({"warnings": ["The network has <b>collapsed</b>."]}))
    shown(browser, tmp_path, [read_run(path)])
    assert browser.errors() == []
    assert "The network has <b>collapsed</b>." in browser.text("#glance .warning")
