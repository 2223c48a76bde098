"""Write the page about runs, with one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advibp.cli.run_images import images_of
from advibp.errors import UserError
from advibp.report.html import write_page
from advibp.report.naming import names_of
from advibp.report.shown_images import Count
from advibp.runs import Run
from advibp.runs.run_files import RunFiles, read_run

#: What names a run.
Source = str | Path | Run | RunFiles


def write_report(
    runs: Source | Sequence[Source],
    out: str | Path | None = None,
    *,
    title: str = "",
    images: Count = "auto",
    data_root: str | None = None,
) -> Path:
    """Write one HTML page about runs, as `advibp report` does. The page needs no network connection.

    Args:
        runs: A folder of a run, a `Run` that has a folder, what `read_run` returns, or several of them.
        out: The HTML file. Default: report.html in the folder of the run; of several runs, in the current folder.
        title: Title of the page. Default: the names of the runs.
        images: Number of images in the page: a number, "all", or "auto", as many as fit into 6 MB. Default: "auto".
        data_root: Folder of the data sets. Default: that of the runs.

    Returns:
        The path of the file.

    Raises:
        UserError: If a run can't be read, or the file can't be written.

    Examples:
        ```python
        run = advibp.train(net, data, eps=0.1, out="runs/first")
        run.certify()
        advibp.write_report(run)  # runs/first/report.html
        ```
    """
    several = runs if isinstance(runs, list | tuple) else [runs]
    if not several:
        raise UserError("There is no run to report; give a folder of a run, or several.")
    files = [_read(run) for run in several]
    page = Path(out or (files[0].path if len(files) == 1 else Path()) / "report.html")
    if page.is_dir():
        raise UserError(f"{page} is a folder; give out a file, such as {page / 'report.html'}.")
    if not page.parent.is_dir():
        raise UserError(f"{page.parent} does not exist; create it, or give another out.")
    names_of(files)  # refuses duplicates
    sources = [images_of(file, data_root) for file in files]
    write_page(page, files, title=title, images=sources, count=images)
    return page


def _read(run: object) -> RunFiles:
    if isinstance(run, RunFiles):
        return run
    if isinstance(run, Run):
        if run.path is None:
            raise UserError("The run has no folder; train it with out=FOLDER, or give the folder of a run.")
        return read_run(run.path)
    if not isinstance(run, str | Path):
        raise UserError(f"A run is of type {type(run).__name__}, but must be a Run or the folder of one.")
    return read_run(run)
