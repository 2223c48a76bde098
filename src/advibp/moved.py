"""Old names of modules and functions. They work for one release with a DeprecationWarning."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

#: Module names in the documentation of release 0.1, and their new names.
MOVED = {
    "advibp.apgd": "advibp.attacks",
    "advibp.bounds.alpha": "advibp.bounds.linear.alpha_crown",
    "advibp.bounds.cut": "advibp.bounds.graph.cut",
    "advibp.bounds.dispatch": "advibp.bounds.domain",
    "advibp.bounds.tape": "advibp.bounds.graph.tape",
    "advibp.onnx": "advibp.vnncomp.onnx",
    "advibp.regularised": "advibp.objectives.regularizers",
    "advibp.report.reading": "advibp.runs.run_files",
    "advibp.surgery": "advibp.weighting.surgery",
    "advibp.sweep": "advibp.runs.sweep",
    "advibp.verify.property": "advibp.vnncomp.properties",
    "advibp.verify.vnnlib": "advibp.vnncomp.vnnlib.vnnlib_file",
    "advibp.weights": "advibp.storage.weights",
}


class _OldNameFinder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} was renamed to {new}; import the new name.", DeprecationWarning, stacklevel=2)
        names = vars(importlib.import_module(new))
        vars(module).update(
            {name: value for name, value in names.items() if not name.startswith("__") or name == "__getattr__"}
        )


def install() -> None:
    """Make the old names importable."""
    if not any(isinstance(finder, _OldNameFinder) for finder in sys.meta_path):
        sys.meta_path.append(_OldNameFinder())


def renamed(module: str, names: Mapping[str, str], keywords: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module in which names have changed.

    Args:
        module: the module's name.
        names: old name -> new name.
        keywords: old keyword argument -> new one; a function that is called by its old name may get either.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        new = names[name]
        target = getattr(sys.modules[module], new)
        warnings.warn(
            f"{module}.{name} was renamed to {module}.{new}; use the new name.", DeprecationWarning, stacklevel=2
        )
        if not keywords or not inspect.isfunction(target):
            return target

        @functools.wraps(target)
        def call(*args: Any, **options: Any) -> Any:
            return target(*args, **{keywords.get(key, key): value for key, value in options.items()})

        return call

    return find


def renamed_keywords(**names: str) -> Callable[[F], F]:
    """Return a decorator of a function or a class: it accepts old keyword arguments, with a DeprecationWarning.

    Args:
        names: old name = new name.
    """

    def decorate(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)  # type: ignore[misc]
            return function

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for old in names.keys() & options.keys():
                message = f"The argument {old} was renamed to {names[old]}; use the new name."
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                options[names[old]] = options.pop(old)
            return function(*args, **options)

        return cast(F, call)

    return decorate


def renamed_attribute(cls: str, old: str, new: str) -> Any:
    """Return a property for the old name of an attribute or a method.

    Args:
        cls: name of the class, for the warning.
        old: the old name.
        new: the new name.
    """

    def get(self: Any) -> Any:
        warnings.warn(f"{cls}.{old} was renamed to {new}; use the new name.", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(get, doc=f"Old name of `{new}`.")


def relocated(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module whose names are now in other modules.

    Args:
        module: the module's name.
        places: name -> the module that has it now.
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        warnings.warn(f"{module}.{name} is now {places[name]}.{name}; use that.", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(places[name]), name)

    return find


class RenamedKeys(dict[str, Any]):
    """A dictionary that also accepts the old names of its keys, with a DeprecationWarning.

    Args:
        content: the dictionary.
        names: old name -> new name.
    """

    def __init__(self, content: Mapping[str, Any], names: Mapping[str, str]) -> None:
        super().__init__(content)
        self._names = names

    def _new(self, key: str) -> str | None:
        """Return the new name of an old one; None if there is none."""
        new = self._names.get(key)
        if new is None or not super().__contains__(new):
            return None
        warnings.warn(f"{key} is now {new}; read that.", DeprecationWarning, stacklevel=3)
        return new

    def __missing__(self, key: str) -> Any:
        new = self._new(key)
        if new is None:
            raise KeyError(key)
        return self[new]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (isinstance(key, str) and self._new(key) is not None)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default
