"""Records as columns of the page."""

from __future__ import annotations

from pathlib import Path

from advibp.cli.run_images import images_of
from advibp.report.record_columns import record_columns
from advibp.report.shown_images import Pictures, collect
from advibp.runs.run_files import read_run
from advibp.verify.records import VERDICTS
from advibp.verify.verifiers import labels_of_checks


def test_columns_say_what_the_records_say(trained: dict[str, Path]) -> None:
    run = read_run(trained["first"])
    assert run.last is not None
    checks = list(labels_of_checks())
    (entry,) = record_columns([run], collect([run], [images_of(run)]))
    for at in entry["at"]:
        records = [r for r in run.last.records if r.eps == at["eps"]]
        assert [VERDICTS[k] for k in at["verdict"]] == [r.verdict for r in records]
        assert [None if k is None else checks[k] for k in at["by"]] == [r.by for r in records]
        for name in ("index", "label", "prediction"):
            assert at[name] == [getattr(r, name) for r in records]
        for r, margin, picture, change in zip(records, at["margin"], at["picture"], at["change"], strict=True):
            assert (margin is None) == (r.lower_margin is None)
            assert margin is None or margin <= r.lower_margin  # a lower bound stays one
            assert picture is not None
            assert (change is not None) == (r.verdict == "falsified")
    for proved, broken, r in zip(entry["radii"]["proved"], entry["radii"]["broken"], run.last.radii, strict=True):
        assert proved <= r.proved
        assert broken is None or (r.broken is not None and broken >= r.broken)


def test_records_need_no_pictures(trained: dict[str, Path]) -> None:
    run = read_run(trained["first"])
    (entry,) = record_columns([run], Pictures())
    assert set(entry["at"][0]["picture"]) == {None}
    assert record_columns([read_run(trained["bare"])], Pictures())[0]["at"] == []
