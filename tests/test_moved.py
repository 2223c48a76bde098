"""Old module names: each leads to the module that has its content now, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

from advibp.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_new_module_and_warns(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        module = importlib.import_module(old)
    new = importlib.import_module(MOVED[old])
    public = [name for name in vars(new) if not name.startswith("_")]
    assert public
    assert all(getattr(module, name) is getattr(new, name) for name in public)
    sys.modules.pop(old)


def test_names_that_never_were_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("advibp.nothing")
