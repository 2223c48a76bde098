"""The trace of a search: bounded in size, with the time and the subproblems of every method."""

from __future__ import annotations

from advibp.verify.exact.trace import Trace


def test_rows_are_thinned_out() -> None:
    trace = Trace(most=10)
    for i in range(1000):
        trace.note("bab", i / 1000, i)
        trace.count(2)
    assert len(trace.rows) <= 11
    seconds = [row[0] for row in trace.rows]
    assert seconds == sorted(seconds)
    assert trace.summary()["methods"] == [{"method": "bab", "seconds": None, "subproblems": 2000}]


def test_time_of_methods() -> None:
    trace = Trace()
    with trace.timed("attack"):
        pass
    with trace.timed("attack"):
        pass
    trace.note("input-split", -1.0, 3)
    trace.count(5)
    methods = {row["method"]: row for row in trace.summary()["methods"]}
    assert methods["attack"]["seconds"] >= 0
    assert methods["input-split"]["subproblems"] == 5
    lines = trace.lines()
    assert any(line.startswith("attack") for line in lines)
    assert lines[-1].split()[1] == "input-split"


def test_empty_trace() -> None:
    assert len(Trace().lines()) == 1
