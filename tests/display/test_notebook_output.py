"""In a real notebook kernel, progress takes one output, which shows the last state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[2]

COUNTING = """
import time
from advibp.display import progress

progress._PATIENCE = 0.0
with progress.Counting("certifying") as counting:
    for eps in (0.1, 0.2):
        for done in range(1, 101):
            counting.progress(eps, done, 100, {"<b>robust": done})
            time.sleep(0.006)
"""
FETCHING = """
with progress.Fetching() as fetching:
    for done in range(0, 101):
        fetching.progress("<i>mnist", done * 10**6, 100 * 10**6)
        time.sleep(0.006)
"""
NOTHING = """
with progress.Counting("certifying") as counting, progress.Fetching() as fetching:
    pass
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    notebook = new_notebook(cells=[new_code_cell(code) for code in (COUNTING, FETCHING, NOTHING)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        folder = str(tmp_path_factory.mktemp("kernel"))
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.slow
def test_counting_has_one_line_per_eps_and_no_bar_that_stays(outputs: list[Any]) -> None:
    (shown,) = outputs[0]
    html = shown.data["text/html"]
    assert html.count("\n") == 1
    assert html.count("100 of 100 images, 100 &lt;b&gt;robust") == 2


@pytest.mark.slow
def test_fetching_shows_the_last_size(outputs: list[Any]) -> None:
    (shown,) = outputs[1]
    assert shown.data["text/html"] == "<pre>&lt;i&gt;mnist: 100.0 of 100.0 MB</pre>"


@pytest.mark.slow
def test_no_work_has_no_output(outputs: list[Any]) -> None:
    assert outputs[2] == []
