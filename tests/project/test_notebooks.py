"""The notebook in examples/ runs, shows progress without a flood of lines, and is a short page."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"
TALLEST = 6000  # pixels of the page at a width of 1200


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    notebook = nbformat.read(NOTEBOOK, 4)
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("MPLBACKEND", raising=False)  # the kernel has its own
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def cell_with(notebook: Any, text: str) -> Any:
    (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source)
    return cell


@pytest.mark.slow
def test_it_runs_and_progress_takes_one_place(executed: Any) -> None:
    training, result = cell_with(executed, "epochs=10").outputs
    assert (training.output_type, result.output_type) == ("display_data", "execute_result")
    html = training.data["text/html"]
    assert html.count("<tr>") == 11  # a header and ten epochs
    assert "<progress" not in html  # the bar is gone at the end
    assert result.data["text/plain"].startswith("Run(method='advibp'")
    (plot,) = cell_with(executed, "run.plot()").outputs
    assert "image/png" in plot.data
    certificate = cell_with(executed, "cert = advibp.certify(net").outputs
    assert len(certificate) <= 2  # progress, if it took long, and the table
    assert "<th>verified error</th>" in certificate[-1].data["text/html"]
    assert len(cell_with(executed, 'method="standard"').outputs) <= 2  # the training is silent
    streams = [out for cell in executed.cells for out in cell.get("outputs", []) if out.output_type == "stream"]
    assert {out.name for out in streams} == {"stdout"}
    assert sum(len(out.text.splitlines()) for out in streams) == 3
    told = "".join(out.text for out in streams)
    assert "certified training: proved is True" in told
    assert "standard training: proved is False" in told


def test_stored_outputs_are_complete_and_small() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(cell.outputs for cell in code)
    assert not any(out.output_type == "error" for cell in code for out in cell.outputs)
    text = NOTEBOOK.read_text("utf-8")
    assert len(text) < 200_000
    assert not any(place in text for place in ("/home/", "/root/", "/tmp/", str(ROOT)))


@pytest.mark.slow
def test_the_page_is_short(tmp_path: Path) -> None:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        told = "the page is looked at with Chromium: install chromium and chromedriver"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(told)
    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="")
    (tmp_path / "page.html").write_text(exporter.from_filename(str(NOTEBOOK))[0], "utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    flags += f" --disable-sync --no-first-run --window-size=1200,800 --user-data-dir={tmp_path / 'profile'}"
    for flag in [*flags.split(), "--host-resolver-rules=MAP * ~NOTFOUND"]:
        options.add_argument(flag)
    chrome = webdriver.Chrome(options, Service(driver))
    try:
        chrome.get((tmp_path / "page.html").as_uri())
        height, width = chrome.execute_script(
            "const page = document.documentElement; return [page.scrollHeight, page.scrollWidth]"
        )
    finally:
        chrome.quit()
    assert 1000 < height < TALLEST
    assert width <= 1200
