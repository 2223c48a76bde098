"""`write_report`: one call for the page that `advibp report` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import advibp
from advibp import UserError


def test_a_run_and_its_folder_give_the_same_page(trained: dict[str, Path], tmp_path: Path) -> None:
    run = advibp.open_run(trained["first"])
    pages = [advibp.write_report(one, tmp_path / f"{k}.html") for k, one in enumerate((run, trained["first"]))]
    assert pages[0].read_text() == pages[1].read_text()
    both = advibp.write_report([trained["first"], str(trained["second"])], tmp_path / "both.html")
    assert both.stat().st_size > 0


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "There is no run to report"),
        (3, "must be a Run or the folder of one"),
        ("no/such/folder", "no/such/folder"),
    ],
)
def test_bad_runs_have_a_message(runs: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        advibp.write_report(runs, tmp_path / "page.html")  # type: ignore[arg-type]
    assert not (tmp_path / "page.html").exists()


def test_bad_files_have_a_message(trained: dict[str, Path], tmp_path: Path) -> None:
    for out, message in ((tmp_path, "is a folder"), (tmp_path / "no/page.html", "does not exist")):
        with pytest.raises(UserError, match=message):
            advibp.write_report(trained["first"], out)
