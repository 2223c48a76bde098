"""Objects have a short repr, and HTML in which every text of the user is escaped."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import advibp
from advibp.bounds.box import Box
from advibp.bounds.zonotope import Zonotope
from advibp.display.object_summary import html_facts, html_table, shorten

EVIL = "<script>alert(1)</script>"


def small_data(name: str = "small") -> advibp.data.Data:
    x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 2
    return advibp.data.from_tensors(x, y, x, y, validation=10, name=name)


def test_data_and_splits_are_short() -> None:
    data = small_data()
    assert repr(data.test) == "Split(images=60, shape=(1, 8, 8))"
    assert repr(data) == "Data(name='small', train=50, validation=10, test=60, input_shape=(1, 8, 8), classes=2)"


def test_a_loader_is_counted_in_batches() -> None:
    x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 2
    dataset = TensorDataset(x, y)
    data = advibp.data.from_datasets(DataLoader(dataset, batch_size=20), dataset, validation=dataset)
    assert "train_batches=3, validation=60" in repr(data)


def test_sets_show_no_tensors() -> None:
    x = torch.rand(2, 1, 4, 4)
    for kind in (Box, Zonotope):
        shown = repr(kind.ball(x, 0.1))
        assert shown.startswith(f"{kind.__name__}(shape=(2, 1, 4, 4), ")
        assert shown.endswith("dtype=torch.float32, device='cpu')")
        assert "(2, 1, 4, 4)" in kind.ball(x, 0.1)._repr_html_()


def test_a_recipe_shows_what_differs_from_the_defaults() -> None:
    recipe = advibp.Recipe(eps=0.1, lr=0.01)
    assert repr(recipe) == "Recipe(data='mnist', net='dm-small', method='advibp', eps=0.1, epochs=60.0, lr=0.01)"
    assert eval(repr(recipe), {"Recipe": advibp.Recipe}) == recipe


def test_a_method_shows_names_of_its_objectives() -> None:
    shown = repr(advibp.METHODS["advibp"])
    assert "weighting='moments'" in shown
    assert "<function" not in shown
    assert "upper" not in repr(advibp.METHODS["standard"])


@pytest.mark.parametrize(
    "thing",
    [
        small_data(EVIL),
        advibp.Recipe(data=EVIL),
        advibp.Method(name=EVIL, description=EVIL, lower=advibp.objectives.regular),
    ],
    ids=["data", "recipe", "method"],
)
def test_html_is_escaped(thing: object) -> None:
    html = thing._repr_html_()  # type: ignore[attr-defined]
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_tables_are_escaped() -> None:
    assert "<script" not in html_table([[EVIL], [EVIL]]) + html_facts(EVIL, {EVIL: EVIL})


def test_long_values_are_cut_to_one_line() -> None:
    assert shorten("a\n b") == "a b"
    assert len(shorten("x" * 500)) == 80
