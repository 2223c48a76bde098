"""Old module names: each leads to the module that has its content now, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from advibp import attacks
from advibp.moved import MOVED


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
