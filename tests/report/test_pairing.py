"""Two networks, image by image."""

from __future__ import annotations

from pathlib import Path

from advibp.report.naming import names_of
from advibp.report.pairing import Certified, Paired, pair_facts
from advibp.runs.run_files import read_run


def test_counts_are_those_of_the_records(trained: dict[str, Path]) -> None:
    runs = [read_run(trained[name]) for name in ("first", "second", "bare")]
    pairs = pair_facts(runs, names_of(runs))
    assert [(p["first"], p["other"], p["eps"], p["what"]) for p in pairs] == [
        (0, 1, 0.01, "proved"),
        (0, 1, 0.01, "right"),
    ]
    verdicts = [{r.index: r.verdict for r in run.last.records if r.eps == 0.01} for run in runs[:2] if run.last]
    for pair in pairs:
        good = [
            {k for k, v in of.items() if (v == "robust" if pair["what"] == "proved" else v != "misclassified")}
            for of in verdicts
        ]
        assert pair["images"] == 60
        assert pair["both"] == len(good[0] & good[1])
        assert (pair["only_first"], pair["only_other"]) == (len(good[0] - good[1]), len(good[1] - good[0]))
        assert pair["p"].startswith("p ")


def test_many_runs_are_compared_with_the_first(trained: dict[str, Path]) -> None:
    run = read_run(trained["first"])
    for count, compared in ((4, 6), (5, 4)):
        pairs = pair_facts([run] * count, [f"{k}" for k in range(count)])
        assert len({(p["first"], p["other"]) for p in pairs}) == compared


def test_sentences() -> None:
    nothing = Certified("a", "mnist", None)
    assert Paired.of(nothing, nothing, "0.1") is None
    pair = Paired("a", "b", images=10, both=5, only_first=1, only_other=3, what="right")
    assert pair.sentence() == "a classifies 1 image correctly that b does not, b 3 that a does not, of 10: p = 0.62"
    same = Paired("a", "b", images=10, both=5, only_first=0, only_other=0, what="right")
    assert same.sentence() == "a and b classify the same 5 of 10 images correctly."
