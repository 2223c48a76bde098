"""The examples of a test are the same in every run, whichever modules are loaded."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st


def examples() -> list[tuple[int, str]]:
    drawn = []

    @given(st.integers(), st.text(max_size=5))
    def note(number: int, text: str) -> None:
        drawn.append((number, text))

    note()
    return drawn


def test_examples_do_not_depend_on_loaded_modules(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = examples()
    file = tmp_path_factory.mktemp("local") / "constants.py"
    file.write_text("\n".join(f"A{k} = {1_000_003 * k}" for k in range(200)))
    module = ModuleType("some_local_constants")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert examples() == before
