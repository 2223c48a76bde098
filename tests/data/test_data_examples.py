"""The examples in docstrings run and give the printed results."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from advibp.data import assembly, lazy, loaders, sets, sources, torch_datasets


@pytest.mark.parametrize("module", [assembly, lazy, loaders, sets, sources, torch_datasets])
def test_examples(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
