"""The runs of every plan at every scale: valid recipes, and one name for one run."""

from __future__ import annotations

import pytest

from advibp.errors import UserError
from advibp.recipe import Recipe
from advibp.reproduce import PLANS, Ask
from advibp.reproduce.layerwise import count_stages
from advibp.reproduce.run_specs import MNIST, SCALES, RunSpec, run_spec
from advibp.weighting import BETA1

#: Warm-up of the stored runs; the default is longer.
STORED = {"warmup_natural": 1.0, "warmup_adversarial": 1.0}


def specs_of(name: str, **asked: object) -> list[RunSpec]:
    return PLANS[name].specs(Ask(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", SCALES)
def test_one_name_is_one_recipe(scale: str) -> None:
    """In a flat folder all tables share their runs."""
    recipes: dict[str, Recipe] = {}
    for name in PLANS:
        for one in specs_of(name, scale=scale):
            assert recipes.setdefault(one.name, one.recipe) == one.recipe
            assert "/" not in one.name
    assert len(set(map(repr, recipes.values()))) == len(recipes)


def test_the_fast_tables_train_what_the_kept_results_hold() -> None:
    runs = {one.name: one for one in specs_of("mnist-table")}
    assert len(runs) == 10  # five methods at two eps_train
    main = runs["mnist-dm-small-advibp-0.4-60e-s0"]
    assert main.recipe == Recipe.load(data="mnist", net="dm-small", method="advibp", eps=0.4, batch_size=256, **STORED)
    assert main.tasks[0].evaluation.eps == (0.2, 0.3, 0.4)
    assert main.tasks[0].evaluation.attack.steps == 200
    assert {one.name for one in specs_of("training-time")} <= runs.keys()
    assert {one.name for one in specs_of("post-verification")} <= runs.keys()
    pairs = specs_of("baseline-figure")
    assert [one.seed for one in pairs] == [0, 1, 2, 0, 1, 2]
    assert pairs[3].recipe == Recipe.load(method="fixed", eps=0.4, batch_size=256)


def test_the_layerwise_figure_has_all_stages_and_both_data_sets() -> None:
    mnist, cifar = specs_of("layerwise-figure")[:3], specs_of("layerwise-figure")[3:]
    assert mnist[2].recipe == Recipe.load(
        eps=0.4, epochs=40, stages="all", stage_epochs=10, seed=2, batch_size=256, **STORED
    )
    assert cifar[2].recipe == Recipe.load(
        data="cifar10", eps=8.8 / 255, epochs=40, stages="all", stage_epochs=10, seed=2, batch_size=256, **STORED
    )
    assert [task.folder for task in mnist[0].tasks] == [f"certify-stage-{k}" for k in (0, 1, 2, 3)]
    assert {task.evaluation.eps for task in mnist[0].tasks} == {(0.1, 0.2, 0.3, 0.4)}
    assert {task.evaluation.eps for task in cifar[0].tasks} == {(8 / 255,)}
    assert [count_stages(f"dm-{size}", "mnist") for size in ("small", "medium", "large")] == [3, 6, 6]
    assert len(specs_of("layerwise-figure", models=("dm-medium",))[0].tasks) == 7
    assert [one.recipe for one in specs_of("layerwise-figure", data="cifar10")] == [one.recipe for one in cifar]
    assert specs_of("layerwise-figure", eps=(0.3,)) == specs_of("layerwise-figure", eps=(0.3,), data="mnist")
    with pytest.raises(UserError, match=r"eps 0\.25 is not in this table"):
        specs_of("layerwise-figure", eps=(0.25,))
    papers = [Recipe.load(f"paper/{name}").changed(published=None) for name in ("mnist-0.4", "cifar10-8")]
    assert [one.recipe for one in specs_of("layerwise-figure", scale="paper")] == papers


def test_the_papers_scale_is_the_papers_recipe() -> None:
    runs = specs_of("mnist-table", scale="paper")
    assert len(runs) == 3 * 5 * 2
    advibp = next(one.recipe for one in runs if (one.recipe.method, one.recipe.eps) == ("advibp", 0.4))
    shipped = Recipe.load("paper/mnist-0.4")
    assert advibp == shipped.changed(published=None)
    rival = next(one.recipe for one in runs if (one.recipe.method, one.recipe.eps) == ("crown-ibp", 0.4))
    assert (rival.epochs, rival.stages, rival.warmup_adversarial) == (250, 0, 0)
    nets = {one.recipe.net for one in specs_of("models-table", scale="paper")}
    assert nets == set("abcdefghij")
    assert {one.recipe.net for one in specs_of("models-table", data="cifar10")} == set("abcdefg")
    assert {one.recipe.eps for one in specs_of("cifar-table")} == {1.1 * n / 255 for n in (2, 8, 16)}


@pytest.mark.parametrize("scale", SCALES)
def test_crown_ibp_at_2_255_is_trained_for_crown_and_verified_by_it(scale: str) -> None:
    """The footnote of Table 2; final beta 1 at this eps, and 0 at the others, is Zhang et al.'s."""
    for one in specs_of("cifar-table", scale=scale, eps=(2 / 255, 8 / 255, 16 / 255)):
        special = one.recipe.method == "crown-ibp" and one.recipe.eps == 1.1 * 2 / 255
        assert one.recipe.beta == (1 if special else 0)
        assert one.tasks[0].evaluation.by == (("ibp", "crown") if special else ("ibp",))
        assert ("beta-1.0" in one.name) == special


def test_a_run_is_named_by_what_differs() -> None:
    asked = Ask()
    plain = run_spec(asked, MNIST, net="a", method="advibp", eps=0.4, seed=0)
    same = run_spec(asked, MNIST, net="a", method="advibp", eps=0.4, seed=0, beta1=BETA1)
    other = run_spec(asked, MNIST, net="Conv 8 3x3+2, FC 100", method="advibp", eps=0.4, seed=1, beta1=0.5)
    assert plain == same
    assert plain.name == "mnist-a-advibp-0.4-60e-s0"
    assert other.name == "mnist-Conv_8_3x3+2,_FC_100-advibp-0.4-60e-beta1-0.5-s1"
