"""Networks of one's own, by the place they are made: ``path/to/file.py:function`` or ``package.module:function``.

This runs code. Only ever call it with what the user typed, never with a name read from a run's folder.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from advibp.errors import UserError

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

#: Modules that the last file of one's own brought along from its folder; the next file may mean others by their names.
_brought: set[str] = set()


def is_own(spec: str) -> bool:
    """Whether `spec` is of the form file.py:function or package.module:function."""
    return spec.rpartition(":")[0].endswith(".py") or _DOTTED.fullmatch(spec) is not None


def from_file(spec: str) -> nn.Module:
    """`path/to/file.py:function` or `package.module:function` -> what the function returns without arguments.

    While it runs, its folder (for a package the current one) is where imports are looked up first, as Python does for
    a script, and what it prints goes to stderr. A class that can be made without arguments will do for a function.
    """
    place, _, name = spec.rpartition(":")
    is_file = place.endswith(".py")
    if not is_own(spec) or (is_file and not Path(place).is_file()):
        raise UserError(f"'{spec}' names no Python file; write path/to/file.py:function or package.module:function.")
    folder = Path(place).resolve().parent if is_file else Path.cwd()
    with _running_in(folder), redirect_stdout(sys.stderr), _told(spec):
        module = _load_file(Path(place)) if is_file else importlib.import_module(place)
        net = _function(module, name, spec)()
    if isinstance(net, type):
        raise UserError(f"{spec} returned the class {net.__name__}; return an instance of it: {net.__name__}().")
    if not isinstance(net, nn.Module):
        raise UserError(f"{spec} returned {type(net).__name__}, but an nn.Module was expected.")
    return net


def _load_file(path: Path) -> ModuleType:
    """Run a file as a module, which is in sys.modules as any other: data classes and pickle look it up there."""
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


def _function(module: ModuleType, name: str, spec: str) -> Callable[[], Any]:
    """The function of that name, which needs no arguments."""
    found = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [n for n, v in vars(module).items() if callable(v)], 1)
        hint = f"did you mean {near[0]}?" if near else "name one that returns the network."
        raise UserError(f"{spec.rpartition(':')[0]} has no function '{name}'; {hint}")
    if isinstance(found, nn.Module):
        raise UserError(f"{spec} is a network already; name a function that makes and returns it.")
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # builtins may have no signature
        return found
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if needed:
        raise UserError(
            f"{spec} needs arguments ({', '.join(needed)}), but it is called without any; give them defaults, or name "
            "another function."
        )
    return found


@contextmanager
def _running_in(folder: Path) -> Iterator[None]:
    """Imports find what lies in `folder`, and find it anew; afterwards sys.path is what it was."""
    for name in _brought:
        sys.modules.pop(name, None)
    _brought.clear()
    importlib.invalidate_caches()
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        _brought.update(name for name in set(sys.modules) - before if _lies_in(folder, name))


def _lies_in(folder: Path, name: str) -> bool:
    """Whether a module was found in `folder` itself, and not in site-packages somewhere below it."""
    file = getattr(sys.modules[name], "__file__", None)
    top = name.partition(".")[0]
    if file is None:
        return False
    path = Path(file).resolve()
    return path == folder / f"{top}.py" or folder / top in path.parents


@contextmanager
def _told(spec: str) -> Iterator[None]:
    """Whatever a network of one's own raises is told in one sentence, with the line of its file."""
    try:
        yield
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise UserError(
            f"{spec}{_line(spec, error)} needs the module '{error.name}', which is not found; install it, or put it "
            "beside the file."
        ) from error
    except SystemExit as error:
        raise UserError(
            f"{spec}{_line(spec, error)} ended the program (exit {error.code}); it must return an nn.Module."
        ) from error
    except Exception as error:
        raise UserError(
            f"{spec} failed{_line(spec, error)} with {type(error).__name__}: {error}; it must return an nn.Module."
        ) from error


def _line(spec: str, error: BaseException) -> str:
    """Where in the file it happened, as " in line 12"; nothing where another file is at fault."""
    path = Path(spec.rpartition(":")[0]).absolute()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f" in line {lines[-1]}" if lines else ""
