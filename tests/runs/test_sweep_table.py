"""Tables of a sweep: means over seeds, and the choice on validation images."""

from __future__ import annotations

from typing import Any

from advibp.runs.sweep_table import choices, seed_table, table


def row(method: str, seed: int, test: float, validation: float) -> dict[str, Any]:
    def errors(verified: float) -> dict[str, Any]:
        return {"0.1": {"standard": 1.0, "PGD": 2.0, "verified (IBP)": None, "verified (best)": verified}}

    return {
        "changes": {"method": method, "seed": seed}, "percent": errors(test), "validation": errors(validation),
        "by": ["crown"], "images": 10, "epochs": 3, "s/epoch": 1.0, "minutes": 0.1,
    }  # fmt: skip


ROWS = [row("a", 0, 10, 30), row("a", 1, 14, 32), row("b", 0, 20, 10), row("b", 1, 20, 20)]


def test_mean_and_standard_deviation_over_seeds() -> None:
    head, *body = seed_table([*ROWS, {"changes": {"method": "c", "seed": 0}, "failed": "diverged"}])
    assert head[:3] == ["method", "test eps", "seeds"]
    verified = [cells[head.index("verified")] for cells in body]
    assert [cells[:3] for cells in body] == [["a", "0.1", "2"], ["b", "0.1", "2"]]
    assert verified == ["12.00 ± 2.83", "20.00 ± 0.00"]
    assert [cells[head.index("validation: verified")] for cells in body] == ["31.00 ± 1.41", "15.00 ± 7.07"]


def test_one_seed_has_no_spread() -> None:
    assert seed_table([ROWS[0], ROWS[2]]) == []
    assert seed_table([{"changes": {}, "failed": "diverged"}]) == []


def test_the_choice_is_made_on_validation_images() -> None:
    (sentence,) = choices(ROWS)
    assert sentence == (
        "eps 0.1: method=b has the lowest verified error on validation images, 15.00 %; on test images it has 20.00 %."
    )
    (sentence,) = choices([one | {"split": "validation"} for one in ROWS])
    assert sentence == "eps 0.1: method=b has the lowest verified error on validation images, 15.00 %."
    assert choices(ROWS[:2]) == []  # nothing to choose from
    assert choices([{k: v for k, v in one.items() if k != "validation"} for one in ROWS]) == []


def test_the_table_leaves_out_empty_columns() -> None:
    head, cells, *_ = table(ROWS)
    assert cells[head.index("best of")] == "CROWN"
    assert cells[head.index("verified (IBP)")] == "-"
    bare = [{k: v for k, v in one.items() if k not in ("validation", "by", "images")} for one in ROWS]
    assert not {"best of", "images", "validation: verified"} & set(table(bare)[0])
