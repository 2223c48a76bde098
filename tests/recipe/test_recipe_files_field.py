"""The recipes of the field: that they load, and what the reference table says about them."""

from __future__ import annotations

import pytest

from advibp import Recipe
from advibp.nets import build, parse
from advibp.recipe import shipped

FIELD = [name for name in shipped() if name.startswith("field/")]


def test_every_setting_has_every_method() -> None:
    settings = ("mnist-0.1", "mnist-0.3", "cifar10-2", "cifar10-8", "tinyimagenet-1")
    methods = ("ibp", "sabr", "taps", "staps", "mtl-ibp", "cc-ibp")
    assert sorted(FIELD) == sorted(f"field/{setting}-{method}" for setting in settings for method in methods)


@pytest.mark.parametrize("name", FIELD)
def test_a_recipe_of_the_field_is_valid_and_fits_its_name(name: str) -> None:
    recipe = Recipe.load(name)
    assert name.startswith(f"field/{recipe.data}-")
    assert name.endswith(recipe.method.removeprefix("shi-"))
    assert recipe.net == "cnn7"
    assert recipe.method == "shi-ibp" or recipe.shi > 0
    assert (recipe.swa_start is not None) is (recipe.method in ("mtl-ibp", "cc-ibp"))
    radius = {"mnist-0.1": 0.2, "mnist-0.3": 0.3, "cifar10-2": 2 / 255, "cifar10-8": 8 / 255, "tinyimagenet-1": 1 / 255}
    wanted = next(value for key, value in radius.items() if key in name)
    wanted = {"field/cifar10-2-sabr": 3 / 255, "field/mnist-0.3-taps": 0.4}.get(name, wanted)
    assert recipe.train_eps == pytest.approx(wanted)
    for errors in (recipe.published or {}).get("cnn7", {}).values():
        standard, verified, _ = errors
        assert standard is None or 0 < standard < verified < 100


def test_cnn7_is_that_of_the_field() -> None:
    """Five padded 3x3 convolutions of stride 1, 1, 2, 1, 1 and a hidden layer of 512, BatchNorm after each."""
    layers = parse("cnn7")
    assert [str(layer) for layer in layers] == [
        *["Conv 64 3x3+1p1 BN"] * 2,
        "Conv 128 3x3+2p1 BN",
        *["Conv 128 3x3+1p1 BN"] * 2,
        "FC 512 BN",
    ]
    assert sum(p.numel() for p in build("cnn7", (3, 32, 32), 10).parameters()) == 17_190_602 + _batchnorm()


def _batchnorm() -> int:
    return 2 * (64 + 64 + 128 + 128 + 128 + 512)
