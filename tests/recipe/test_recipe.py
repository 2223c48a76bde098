"""Options: the same in YAML, on the command line and in Python; what can't be meant is one sentence."""

from __future__ import annotations

import dataclasses
import math
import shlex
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advibp import cli
from advibp.errors import UserError
from advibp.methods import METHODS, WEIGHTINGS
from advibp.recipe import Recipe, shipped

KEYS = [f.name for f in dataclasses.fields(Recipe)]

# ------------------------------------------------------------------------------------ any recipe

# At most 5 epochs or 30 % each: with 20 epochs or more the three phases always fit.
spans = st.one_of(st.floats(0, 5), st.floats(0, 30).map(lambda p: f"{p:g}%"), st.integers(0, 30).map(lambda p: f"{p}%"))
small = st.floats(1e-12, 0.999)
names = st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF), min_size=1, max_size=12)
values: dict[str, st.SearchStrategy[Any]] = {
    "data": names,
    "net": names,
    "method": st.sampled_from(list(METHODS)),
    "eps": small,
    "eps_scale": st.one_of(
        st.none(),
        st.lists(st.floats(0, 10), min_size=1, max_size=3),
        st.dictionaries(st.text("abc .-", min_size=1).filter(str.strip).map(str.strip), st.floats(0, 10), min_size=1),
    ),
    "input_range": st.sampled_from(["auto", None, [0.0, 1.0], [None, 2.5], {"a": [0.0, None], "b": [-1.5, 1.0]}]),
    "epochs": st.floats(20, 500),
    "extended": st.sampled_from([[], [10.0], [10.0, 19.0]]),
    "warmup_natural": spans,
    "warmup_adversarial": spans,
    "warmup_adversarial_ramp": st.one_of(st.none(), spans),
    "ramp": spans,
    "ramp_shape": st.sampled_from(["linear", "smooth"]),
    "c_max": st.one_of(st.just("auto"), st.floats(0, 10)),
    "c_extra": spans,
    "c_decay": spans,
    "fosc_scale": st.sampled_from(["sample", "batch"]),
    "fosc_set": st.sampled_from(["clipped", "ball"]),
    "weighting": st.sampled_from([None, *WEIGHTINGS]),
    "kappa": st.one_of(st.none(), st.floats(0, 1)),
    "scope": st.sampled_from(["all", "first", "last"]),
    "beta1": small,
    "beta2": small,
    "attack_steps": st.integers(1, 100),
    "beta": st.floats(0, 1),
    "loss_fusion": st.booleans(),
    "domain": st.sampled_from(["box", "hybrid", "deepz"]),
    "symbols": st.integers(0, 1000),
    "regularizer": st.floats(0, 1),
    "projections": st.integers(0, 1000),
    "batch_size": st.integers(1, 4096),
    "at_once": st.integers(0, 4096),
    "recompute": st.booleans(),
    "compile": st.booleans(),
    "lr": small,
    "lr_shape": st.sampled_from(["steps", "linear"]),
    "lr_milestones": st.lists(spans, max_size=4),
    "lr_factor": small,
    "clip": st.one_of(st.none(), st.floats(1e-6, 1e6)),
    "l1": st.floats(0, 1),
    "max_loss": st.floats(1e-3, 1e12),
    "batchnorm": st.sampled_from(["adversarial", "clean"]),
    "stages": st.one_of(st.just("all"), st.integers(0, 1000)),
    "stage_epochs": st.floats(0.1, 500),
    "stage_lr": small,
    "stage_lr_milestones": st.lists(spans, max_size=4),
    "weights": st.sampled_from([None, "w.safetensors", "a folder/w.safetensors"]),
    "init": st.sampled_from(["ibp", "default"]),
    "normalize": st.booleans(),
    "data_root": st.sampled_from([None, "sets", "../my sets"]),
    "label": st.sampled_from([None, "class", "a column"]),
    "size": st.one_of(st.none(), st.integers(1, 4096)),
    "flip": st.booleans(),
    "crop": st.integers(0, 64),
    "validation": st.integers(1, 5000),
    "select": st.sampled_from(["last", "best"]),
    "limit": st.one_of(st.none(), st.integers(1, 60_000)),
    "seed": st.integers(0, 2**63 - 1),
    "threads": st.one_of(st.none(), st.integers(1, 64)),
    "device": st.sampled_from(["auto", "cpu", "cuda:1"]),
    "train_eps_factor": st.floats(0.01, 100),
    "alpha": st.floats(0, 1),
    "sabr_lambda": st.floats(0, 1),
    "relu_shrink": st.floats(0.01, 1),
    "taps_layers": st.integers(1, 100),
    "taps_weight": st.floats(0, 100),
    "attack_restarts": st.integers(1, 100),
    "attack_eps_factor": st.floats(0, 100),
    "clean_share": st.floats(0, 0.9),
    "shi": st.floats(0, 1),
    "optimizer": st.sampled_from(["adam", "adamw", "radam"]),
    "weight_decay": st.floats(0, 1),
    "lr_milestones_from": st.sampled_from(["start", "ramp"]),
    "swa_start": st.one_of(st.none(), st.floats(0, 19), st.sampled_from(["20%", "90%"])),
    "swa_every": st.integers(1, 1000),
    "batchnorm_evaluation": st.sampled_from(["running", "population"]),
    "crop_padding": st.sampled_from(["zeros", "edge"]),
    "published": st.one_of(st.none(), st.dictionaries(st.text("abcz.-", min_size=1), st.floats(0.01, 99), max_size=3)),
}
known_here = st.sampled_from([key for key in KEYS if key in values])
mappings = st.sets(known_here).flatmap(lambda keys: st.fixed_dictionaries({key: values[key] for key in keys}))


def suited(mapping: dict[str, Any]) -> dict[str, Any]:
    """Without what has no meaning for its method."""
    method = METHODS[mapping.get("method", "advibp")]
    two = method.lower and method.upper
    weighting = (mapping.get("weighting") if two else None) or method.weighting
    alien = {key for row in METHODS.values() for key in row.recipe_keys} - set(method.recipe_keys)
    alien |= set() if method.latent else {"stages"}
    alien |= {"extended", "swa_start"} if {**method.recipe, **mapping}.get("stages") else set()
    alien |= {"shi"} if mapping.get("method") == "shi-ibp" else set()
    alien |= set() if two else {"weighting", "kappa"}
    alien |= set() if weighting in ("fixed", "scheduled") else {"kappa"}
    alien |= set() if weighting == "moments" else {"scope"}
    return {key: value for key, value in mapping.items() if key not in alien}


recipes = mappings.map(lambda mapping: Recipe.load(**{"epochs": 70, **suited(mapping)}))


def test_every_key_is_tried_here() -> None:
    assert set(KEYS) == set(values)


@given(recipes)
def test_yaml_and_back(recipe: Recipe) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(recipe.to_yaml(), "utf-8")
        assert Recipe.load(file) == recipe
        assert Recipe.load(str(file), seed=7) == dataclasses.replace(recipe, seed=7)


@given(recipes)
def test_a_recipe_is_made_of_what_it_shows(recipe: Recipe) -> None:
    assert Recipe.of(recipe.as_dict()) == recipe


@given(recipes.filter(lambda r: not r.data.startswith("-") and not r.net.startswith("-")))
def test_the_command_line_and_back(recipe: Recipe) -> None:
    """All but the published numbers, which are for comparison and no option."""
    program, *words = shlex.split(recipe.command())
    args = cli.parser().parse_args(words)
    given = {key: getattr(args, key) for key in KEYS if getattr(args, key) is not None}
    assert program == "advibp"
    assert Recipe.load(**given) == dataclasses.replace(recipe, published=None)


@given(recipes)
def test_phases_fit_into_the_epochs(recipe: Recipe) -> None:
    line = recipe.timeline()
    assert line.joint + line.ramp <= recipe.epochs


# ------------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize("written", ["8/255", " 8 / 255 ", 8 / 255, str(8 / 255)])
def test_fractions(written: object) -> None:
    assert Recipe.of({"eps": written}).eps == 8 / 255


@pytest.mark.parametrize(
    ("key", "written", "read"),
    [
        ("ramp", "30%", "30%"),
        ("ramp", " 30.0 % ", "30%"),
        ("ramp", "12", 12.0),
        ("ramp", "1/2", 0.5),
        ("lr_milestones", "75%, 90%", ("75%", "90%")),
        ("lr_milestones", [10, "90%"], (10.0, "90%")),
        ("lr_milestones", "", ()),
        ("clip", "none", None),
        ("clip", None, None),
        ("c_max", "auto", "auto"),
        ("c_max", "1e-3", 1e-3),
        ("normalize", "yes", True),
        ("normalize", "Off", False),
        ("limit", "100", 100),
        ("data", Path("digits.npz"), "digits.npz"),
    ],
)
def test_other_spellings(key: str, written: object, read: object) -> None:
    assert getattr(Recipe.of({key: written}), key) == read


NO_PHASES = {"warmup_natural": 0.0, "warmup_adversarial": 0.0, "ramp": 0.0}


@given(st.floats(1, 1000), st.floats(0, 30))
def test_a_share_is_of_all_epochs(epochs: float, percent: float) -> None:
    share = f"{percent:g}%"
    assert Recipe(epochs=epochs, **NO_PHASES).in_epochs(share) == pytest.approx(float(share[:-1]) / 100 * epochs)
    assert Recipe(epochs=epochs, **NO_PHASES).in_epochs(3.0) == 3


# ------------------------------------------------------------------------------------ what is refused

BAD: dict[str, list[object]] = {
    "data": ["", None, 3],
    "net": ["", ["dm-small"]],
    "method": ["AdvIBP", "", None],
    "eps": [0, -0.1, 1.5, "a lot", "1/0", "8/x", math.nan, "inf", True, None, []],
    "epochs": [0, -1, math.inf, "ten"],
    "warmup_natural": [-1, "-1%", "101%", "%", "x%", "nan%", None, True],
    "warmup_adversarial": ["one", {}],
    "warmup_adversarial_ramp": ["all", -2],
    "eps_scale": [3, -1, [], ["x"], [-1.0], {"a": -1}, {}, "x,y", "a=1,b", "a=-1"],
    "input_range": [3, "0", [0], ["a", 1], "0,x", {"a": 3}, "a=0", "a=x:1", [0, 1, 2]],
    "ramp": [-1, "100.1%"],
    "ramp_shape": ["quartic"],
    "c_max": [-1, "automatic", None],
    "c_extra": [-1],
    "c_decay": ["-0.1%"],
    "fosc_scale": ["mean"],
    "fosc_set": ["box"],
    "weighting": ["gowal", 1],
    "kappa": [-0.1, 1.5, "half"],
    "scope": ["middle", None],
    "attack_steps": [0, 1.5, "x"],
    "beta": [-1, 2],
    "loss_fusion": ["maybe", 2, None],
    "domain": ["octagon", None],
    "symbols": [-1, "all"],
    "regularizer": [-1, "x"],
    "projections": [-1, 0.5],
    "beta1": [1, -0.1, "x"],
    "beta2": [1.0, 2],
    "batch_size": [0, -3, 2.5, "many", True, None],
    "at_once": [-1, 1.5, "all"],
    "recompute": ["maybe", 2, None],
    "compile": ["maybe", 2, None],
    "lr": [0, -1e-3, "fast"],
    "lr_milestones": [5, "75%;90%", [None], {"at": 5}],
    "lr_shape": ["cosine"],
    "lr_factor": [-1, 2],
    "clip": [0, -1, "never"],
    "l1": [-1],
    "max_loss": [0, -1, "nan"],
    "batchnorm": ["population", None],
    "stages": [-1, "none", 1.5, True],
    "stage_epochs": [0, "ten"],
    "stage_lr": [0, -1],
    "stage_lr_milestones": [5, ["x"]],
    "weights": ["", 3],
    "init": ["he"],
    "normalize": ["maybe", 2, None],
    "data_root": ["", 3],
    "label": ["", 3],
    "size": [0, 5000, "small"],
    "flip": ["perhaps", None],
    "crop": [-1, 65, 0.5],
    "validation": [0, "x"],
    "extended": [5, "x", [0.5]],
    "select": ["first"],
    "limit": [0, "all", 1.5],
    "seed": [-1, "x", 0.5],
    "threads": [0, "two"],
    "device": ["", None],
    "train_eps_factor": [0, -1, "x", 1000],
    "alpha": [-0.1, 1.1, "half"],
    "sabr_lambda": [-0.1, 1.1, None],
    "relu_shrink": [0, 1.1],
    "taps_layers": [0, 1.5, "all"],
    "taps_weight": [-1, "x"],
    "attack_restarts": [0, 2.5],
    "attack_eps_factor": [-1, "x"],
    "clean_share": [-0.1, 1, "x"],
    "shi": [-1, "x"],
    "optimizer": ["sgd", None],
    "weight_decay": [-1, "x"],
    "lr_milestones_from": ["end", 3],
    "swa_start": [-1, "101%", "last"],
    "swa_every": [0, 1.5],
    "batchnorm_evaluation": ["batch", None],
    "crop_padding": ["mirror", 0],
    "published": [3, "18 %", [1]],
}


def test_every_key_has_something_it_refuses() -> None:
    assert set(KEYS) == set(BAD)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, bad in BAD.items() for value in bad])
def test_a_bad_value_is_one_sentence_that_names_the_key(key: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        Recipe.of({key: value})
    sentence = str(caught.value)
    assert sentence.startswith(f"{key} is {value!r}, but must be ")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "convert" not in sentence  # Python's words for it are not ours


def test_milestones_relative_to_the_ramp() -> None:
    options = {"epochs": 100, "warmup_natural": 1, "warmup_adversarial": 0, "ramp": 80, "lr_milestones": [5, "10%"]}
    assert Recipe.load(**options).milestones == [5, 10]
    assert Recipe.load(**options, lr_milestones_from="ramp").milestones == [86, 91]


def test_a_recipe_says_that_a_loss_is_no_bound() -> None:
    for method, row in METHODS.items():
        first = next(line for line in Recipe.load(method=method).to_yaml().splitlines() if line.startswith("method"))
        assert ("is no bound of the robust loss" in first) is not row.upper_is_bound


def test_an_unknown_key_suggests_the_one_that_was_meant() -> None:
    with pytest.raises(UserError, match=r"'epoch' is no recipe key; did you mean epochs\?"):
        Recipe.load(epoch=3)
    with pytest.raises(UserError, match="known keys are data, net, method"):
        Recipe.of({"qqqqqq": 3})
    with pytest.raises(UserError, match="'3' is no recipe key"):
        Recipe.of({3: 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "phases",
    [
        {"epochs": 2, "warmup_natural": 1, "warmup_adversarial": 1},
        {"epochs": 10, "ramp": 8.5},
        {"warmup_natural": "40%", "warmup_adversarial": "40%", "ramp": "30%"},
    ],
)
def test_phases_that_do_not_fit(phases: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"warmup_natural \+ warmup_adversarial \+ ramp take .* epochs"):
        Recipe.of(phases)


@pytest.mark.parametrize("epochs", [0.5, 1, 2, 3, 60])
def test_the_default_phases_fit_any_number_of_epochs(epochs: float) -> None:
    line = Recipe.of({"epochs": epochs}).timeline()
    assert line.joint + line.ramp == pytest.approx(0.55 * epochs)


def test_a_method_without_warm_up_needs_no_room_for_one() -> None:
    assert Recipe.load(method="standard", epochs=1).timeline().joint == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- a\n- b\n", "holds no recipe"),
        (b"", "holds no recipe"),
        (b"lr: [1\n", "no valid YAML"),
        (b"\xff\xfe\x00bad", "no valid YAML"),
        (b"lr: fast\n", "lr is 'fast'"),
        (b"lrs: 0.1\n", "did you mean lr?"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        Recipe.load(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(UserError, match=r"no recipe 'demmo'.*demo"):
        Recipe.load("demmo")


# ------------------------------------------------------------------------------------ not yet


def test_yaml_keeps_every_character(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(Recipe(data="\U0001d49f.npz").to_yaml(), "utf-8")
    assert Recipe.load(tmp_path / "recipe.yaml").data == "\U0001d49f.npz"


def test_shares_that_fill_the_epochs_exactly_fit() -> None:
    for epochs in range(1, 100):
        Recipe.of({"epochs": epochs, "warmup_natural": "10%", "warmup_adversarial": "10%", "ramp": "80%"})


def test_a_share_may_be_a_fraction_too() -> None:
    assert Recipe.of({"ramp": "1/2%"}).ramp == "0.5%"


# ------------------------------------------------------------------------------------ what ships


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_loads(name: str) -> None:
    recipe = Recipe.load(name)
    assert recipe.timeline().epochs == recipe.epochs
    assert Recipe.of(recipe.as_dict()) == recipe


def test_without_a_source_these_are_the_defaults() -> None:
    assert Recipe.load() == Recipe() == Recipe.of({})
    assert Recipe().command() == "advibp train mnist dm-small"
