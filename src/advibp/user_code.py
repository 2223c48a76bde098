"""Objects of one's own, by the place they are made: ``path/to/file.py:NAME`` or ``package.module:NAME``.

This runs code. Only ever call it with what the user typed, never with a name read from a run's folder.
"""

from __future__ import annotations

import difflib
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

from advibp.errors import UserError

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

#: Modules that the last file of one's own brought along from its folder; the next file may mean others by their names.
_brought: set[str] = set()

T = TypeVar("T")


def is_own(spec: str) -> bool:
    """Whether `spec` is of the form file.py:NAME or package.module:NAME."""
    return spec.rpartition(":")[0].endswith(".py") or _DOTTED.fullmatch(spec) is not None


def load(spec: str, make: Callable[[Any], T], *, like: Callable[[Any], bool], kind: str, wanted: str) -> T:
    """What `make` makes of the object at `spec`, `kind` of which is meant and `like` tells, while its folder (for a
    package the current one) is where imports are looked up first, as Python does for a script; what it prints goes to
    stderr. `wanted` ends the sentence for a failure: "it must ..."."""
    place, _, name = spec.rpartition(":")
    is_file = place.endswith(".py")
    if not is_own(spec) or (is_file and not Path(place).is_file()):
        raise UserError(f"'{spec}' names no Python file; write path/to/file.py:{kind} or package.module:{kind}.")
    folder = Path(place).resolve().parent if is_file else Path.cwd()
    with _running_in(folder), redirect_stdout(sys.stderr), _told(spec, wanted):
        module = _load_file(Path(place)) if is_file else importlib.import_module(place)
        found = getattr(module, name, None)
        if found is None or not like(found):
            near = difflib.get_close_matches(name, [n for n, v in vars(module).items() if like(v)], 1)
            hint = f"did you mean {near[0]}?" if near else f"{wanted}."
            raise UserError(f"{place} has no {kind} '{name}'; {hint}")
        return make(found)


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
def _told(spec: str, wanted: str) -> Iterator[None]:
    """Whatever code of one's own raises is told in one sentence, with the line of its file."""
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
        raise UserError(f"{spec}{_line(spec, error)} ended the program (exit {error.code}); {wanted}.") from error
    except Exception as error:
        raise UserError(f"{spec} failed{_line(spec, error)} with {type(error).__name__}: {error}; {wanted}.") from error


def _line(spec: str, error: BaseException) -> str:
    """Where in the file it happened, as " in line 12"; nothing where another file is at fault."""
    path = Path(spec.rpartition(":")[0]).absolute()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f" in line {lines[-1]}" if lines else ""
