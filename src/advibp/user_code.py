"""Load the user's Python objects from ``path/to/file.py:NAME`` or ``package.module:NAME``.

This is the only module that runs user code from a file. Call it only with names that the user typed, never with names
from a recipe or a run's folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from advibp.errors import UserError, suggestion

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

#: Modules that the last user file imported from its folder. They are unloaded before the next file is loaded, which may
#: have other modules of the same names.
_folder_modules: set[str] = set()

T = TypeVar("T")


def is_user_code(spec: str) -> bool:
    """Return whether `spec` has the form file.py:NAME or package.module:NAME."""
    return spec.rpartition(":")[0].endswith(".py") or _DOTTED.fullmatch(spec) is not None


def load(spec: str, make: Callable[[Any], T], *, like: Callable[[Any], bool], kind: str, wanted: str) -> T:
    """Load the object at `spec` and convert it.

    Imports of the user's code are searched first in the file's folder (for a package in the current folder), as for a
    script. Its output goes to stderr.

    Args:
        spec: file.py:NAME or package.module:NAME.
        make: converts the object; it may call it.
        like: returns whether an object has the right kind.
        kind: the kind of object, such as "function", for error messages.
        wanted: the requirement that ends error messages: "it must ...".

    Returns:
        The result of `make`.

    Raises:
        UserError: there is no such object, or the user's code failed; the message has the line.
    """
    place, _, name = spec.rpartition(":")
    is_file = place.endswith(".py")
    if not is_user_code(spec):
        raise UserError(f"'{spec}' names no Python file; write path/to/file.py:{kind} or package.module:{kind}.")
    if is_file and not Path(place).is_file():
        raise UserError(f"There is no file {place}; write path/to/file.py:{kind} or package.module:{kind}.")
    folder = Path(place).resolve().parent if is_file else Path.cwd()
    with _import_from(folder), redirect_stdout(sys.stderr), _user_errors(spec, wanted):
        module = _load_file(Path(place)) if is_file else importlib.import_module(place)
        value = getattr(module, name, None)
        if value is None or not like(value):
            hint = suggestion(name, [n for n, v in vars(module).items() if like(v)], f"{wanted}.")
            raise UserError(f"{place} has no {kind} '{name}'; {hint}")
        return make(value)


def _load_file(path: Path) -> ModuleType:
    """Run a file as a module and add it to sys.modules, where dataclasses and pickle look it up."""
    name = f"advibp_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _import_from(folder: Path) -> Iterator[None]:
    """Search imports first in `folder`, and load its modules again. sys.path is restored afterwards."""
    for name in _folder_modules:
        sys.modules.pop(name, None)
    _folder_modules.clear()
    importlib.invalidate_caches()
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        _folder_modules.update(name for name in set(sys.modules) - before if _is_in(folder, name))


def _is_in(folder: Path, name: str) -> bool:
    """Return whether a module is directly in `folder`, and not in a site-packages folder below it."""
    file = getattr(sys.modules[name], "__file__", None)
    top = name.partition(".")[0]
    if file is None:
        return False
    path = Path(file).resolve()
    return path == folder / f"{top}.py" or folder / top in path.parents


@contextmanager
def _user_errors(spec: str, wanted: str) -> Iterator[None]:
    """Convert errors of the user's code to a UserError with the line of the file."""
    try:
        yield
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise UserError(
            f"{spec}{_line(spec, error)} needs the module '{error.name}', which was not found; install it, or put it "
            "in the folder of the file."
        ) from error
    except SystemExit as error:
        raise UserError(f"{spec}{_line(spec, error)} ended the program (exit {error.code}); {wanted}.") from error
    except Exception as error:
        raise UserError(f"{spec} failed{_line(spec, error)} with {type(error).__name__}: {error}; {wanted}.") from error


def _line(spec: str, error: BaseException) -> str:
    """Return the line of the user's file that failed, as " in line 12"; "" if the error is in another file."""
    path = Path(spec.rpartition(":")[0]).absolute()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f" in line {lines[-1]}" if lines else ""
