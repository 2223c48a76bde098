"""The search space of a tuning: ranges, lists of values, and one sentence for what can't be read."""

from __future__ import annotations

from typing import Any

import pytest

from advibp import UserError
from advibp.methods import METHODS
from advibp.runs.search_space import FIXED, Dimension, parse_search


def test_ranges_and_values() -> None:
    method, lr, alpha, steps = parse_search(
        ["lr=1e-4..1e-2:log", "alpha=0.01..1", "attack-steps=1..10", "method=sabr,mtl-ibp"]
    )
    assert method == Dimension("method", choices=("sabr", "mtl-ibp"))  # first, because other keys depend on it
    assert lr == Dimension("lr", low=1e-4, high=1e-2, log=True)
    assert alpha == Dimension("alpha", low=0.01, high=1)
    assert steps == Dimension("attack_steps", low=1, high=10, whole=True)
    assert parse_search({"lr": "1e-4..1e-2:log", "method": ["sabr"]})[1] == lr
    assert parse_search(["method=all"])[0].choices == tuple(METHODS)
    assert parse_search(["flip=true,false"])[0].choices == (True, False)


def test_a_key_applies_to_the_methods_that_use_it() -> None:
    alpha, lr = parse_search(["alpha=0..1", "lr=0.1..1"])
    assert alpha.applies_to("mtl-ibp")
    assert not alpha.applies_to("sabr")
    assert lr.applies_to("sabr")


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (["lr"], "'lr' has no values"),
        (["lr="], "'lr=' has no values"),
        ([], "The search is empty"),
        (["rl=1..2"], "'rl' is no recipe key"),
        (["lr=0.1..0.2", "lr=0.3..0.4"], "names lr twice"),
        (["lr=2..1"], "LOW < HIGH"),
        (["alpha=0..1:log"], "LOW > 0"),
        (["lr=1e-4..1e-2:exp"], "LOW..HIGH:log"),
        (["lr=0.1..0.2..0.3"], "must be LOW..HIGH"),
        (["alpha=0..2"], "alpha the value '2'"),
        (["method=sabr,sabre"], "method the value 'sabre'"),
        (["lr=a..b"], "lr the value 'a'"),
        ({"lr": 3}, "must be LOW..HIGH"),
        ({"lr": []}, "must be LOW..HIGH"),
        *(([f"{key}=1..2"], f"{key} can't be searched") for key in FIXED),
    ],
)
def test_bad_searches_are_one_sentence(search: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_search(search)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
