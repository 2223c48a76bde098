"""Old module names: each leads to the module that has its content now, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

import advibp
from advibp import attacks
from advibp.moved import MOVED, RenamedKeys


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_new_module_and_warns(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} was renamed to {MOVED[old]}"):
        module = importlib.import_module(old)
    new = importlib.import_module(MOVED[old])
    public = [name for name in vars(new) if not name.startswith("_")]
    assert public
    assert all(getattr(module, name) is getattr(new, name) for name in public)
    sys.modules.pop(old)


def test_names_that_never_were_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("advibp.nothing")


def test_old_names_of_attacks_work_and_warn() -> None:
    net, x, y = torch.nn.Linear(3, 2), torch.rand(4, 3), torch.zeros(4, dtype=torch.long)
    new = attacks.linf_fgsm(net, x, y, 0.1, rel_stepsize=0.5)
    with pytest.warns(DeprecationWarning, match="attacks.linf_fgsm"):
        assert torch.equal(attacks.fgsm(net, x, y, 0.1, step=0.5), new)
    with pytest.raises(AttributeError, match="no attribute 'l2_pgd'"):
        attacks.l2_pgd  # noqa: B018


def test_old_arguments_and_attributes_of_a_method_work_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match="says was renamed to description"):
        method = advibp.Method(says="mine", upper=advibp.objectives.ibp)
    assert method.description == "mine"
    with pytest.warns(DeprecationWarning, match="Method.reads was renamed to recipe_keys"):
        assert method.reads == ()


def test_old_arguments_of_zonotopes_and_attacks_work_and_warn() -> None:
    x = torch.full((1, 2), 0.5)
    with pytest.warns(DeprecationWarning, match="most_symbols was renamed to max_symbols"):
        assert advibp.Zonotope.ball(x, 0.1, most_symbols=1).max_symbols == 1
    with pytest.warns(DeprecationWarning, match=r"attacks\.linf_pgd"):
        attack = advibp.attacks.pgd
    assert not attack(torch.nn.Identity(), x, torch.tensor([0]), 0.1, steps=1, by=1.0).broken.any()


def test_old_names_of_certificates_work_and_warn() -> None:
    certificate = advibp.certify(torch.nn.Linear(2, 2), torch.rand(2, 2), torch.tensor([0, 1]), 0.1)
    with pytest.warns(DeprecationWarning, match="renamed to outcomes"):
        assert certificate.flow(0.1) == certificate.outcomes(0.1)
    with pytest.warns(DeprecationWarning, match="renamed to verifiers"):
        assert certificate.asked(0.1) == certificate.verifiers(0.1)
    with pytest.warns(DeprecationWarning, match="Outcome"):
        assert advibp.verify.records.Decided is type(certificate.outcomes(0.1)[0])
    with pytest.warns(DeprecationWarning, match="is_user_code"):
        assert advibp.nets.is_own("mine.py:NET")


def test_old_keywords_of_weightings_recipes_and_settings_work_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match="adv was renamed to lower"):
        assert advibp.Fixed(adv=0.25, ibp=0.5).weights()[:2] == (0.25, 0.5)
    with pytest.warns(DeprecationWarning, match="ibp was renamed to upper"):
        assert advibp.weighting.Weights(adv=1.0, ibp=2.0, reg=0.0, branch="fixed", angle=0.0).upper == 2.0
    with pytest.warns(DeprecationWarning, match="regulariser was renamed"):
        recipe = advibp.Recipe(method="mip", regulariser=0.5)
    with pytest.warns(DeprecationWarning, match="Recipe.regulariser was renamed"):
        assert recipe.regulariser == recipe.regularizer == 0.5
    with pytest.warns(DeprecationWarning, match="state is now state_dict"):
        assert advibp.Moments().state() == {}
    with pytest.warns(DeprecationWarning, match="BaseWeighting"):
        assert advibp.weighting.Memoryless is advibp.weighting.BaseWeighting


def test_old_places_of_displays_work_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match=r"advibp.runs.training_display.Silent"):
        assert advibp.display.Silent is advibp.Silent


def test_old_keys_of_a_dictionary_are_found_and_warn() -> None:
    keys = RenamedKeys({"new": 1}, {"old": "new", "gone": "lost"})
    with pytest.warns(DeprecationWarning, match="old is now new"):
        assert keys["old"] == 1
    with pytest.warns(DeprecationWarning, match="old is now new"):
        assert keys.get("old") == 1
    with pytest.warns(DeprecationWarning, match="old is now new"):
        assert "old" in keys
    assert keys.get("gone", 2) == 2
    assert list(keys) == ["new"]
    with pytest.raises(KeyError):
        keys["gone"]
