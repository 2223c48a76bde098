"""What a run was made from: its data set and its network, so that its folder can be used from anywhere.

recipe.yaml is portable: it names data and network as the user did. sources.json, beside it, has absolute paths, a
fingerprint of the test images, and the place of a user's network. Data files are read from there. User code is never
run from there: the path only tells the user which option to give.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from advibp import nets
from advibp.data import Data, Lazy, Loader, Split
from advibp.data.features import plain_range
from advibp.data.lazy import sample_few
from advibp.errors import UserError
from advibp.recipe import Recipe
from advibp.runs.recipe_data import load_data
from advibp.storage import checkpoint
from advibp.storage.run_folder import RunFolder
from advibp.verify.argument_checks import check_path

_KINDS = {Split: "tensors", Lazy: "a Dataset", Loader: "a DataLoader"}

SAVE = "numpy.savez(FILE, x_train=..., y_train=..., x_test=..., y_test=...)"


class OtherDataWarning(UserWarning):
    """The test images of a run have changed since its training.

    Examples:
        >>> import warnings
        >>> from advibp.runs.run_sources import OtherDataWarning
        >>> warnings.simplefilter("error", OtherDataWarning)  # stop instead
        >>> warnings.resetwarnings()
    """


def named_by_sources(recipe: Recipe, net: nn.Module, data: Data, given: set[str]) -> Recipe:
    """Return the recipe with the names of the network and the data that are trained.

    Args:
        recipe: the recipe; from the command line it has these names already.
        net: the network.
        data: the data set.
        given: keys that the user has given; they are kept.
    """
    changes: dict[str, Any] = {}
    if not nets.is_user_code(recipe.net) and "net" not in given:
        spec = nets.spec_of(net, data.input_shape, data.classes)
        changes |= {"net": type(net).__name__} if spec is None else {"net": spec[0], "normalize": spec[1]}
    origin = data.origin
    if origin is None:
        changes["data"] = data.name
    elif origin.source != recipe.data:
        changes |= {"data": origin.source, "size": origin.size, "data_root": origin.root, "label": origin.label}
    if origin is not None and len(data.validation):
        changes |= {"validation": len(data.validation), "limit": origin.limit}
    if recipe.input_range == "auto":
        changes["input_range"] = plain_range(data.input_range, data.input_shape)
    return dataclasses.replace(recipe, **{key: value for key, value in changes.items() if key not in given})


def sources_of(net: nn.Module, data: Data, recipe: Recipe) -> dict[str, Any]:
    """Return the contents of sources.json."""
    origin = data.origin
    source: dict[str, Any] = {"kind": "python", "type": _KINDS[type(data.train)]}
    if origin is not None:
        source = {"kind": "name" if origin.path is None else "file", "source": origin.source, "path": origin.path}
    source["test"] = fingerprint(data.test)
    return {"data": source, "net": _place(net, recipe)}


def _place(net: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """Return where the code of a network is."""
    if nets.is_known(recipe.net):
        return {"kind": "built", "spec": recipe.net}
    if nets.is_user_code(recipe.net):
        file, _, name = recipe.net.rpartition(":")
        place = f"{os.path.abspath(file)}:{name}" if file.endswith(".py") else recipe.net
        return {"kind": "code", "spec": recipe.net, "path": place}
    kind = type(net)
    try:
        file = os.path.abspath(inspect.getfile(kind))
    except (TypeError, OSError):  # defined in an interactive session
        file = ""
    importable = kind.__module__ != "__main__" and "<locals>" not in kind.__qualname__
    path = f"{kind.__module__}:{kind.__name__}" if importable and _needs_no_arguments(kind) else ""
    return {"kind": "python", "class": kind.__qualname__, "file": file, "path": path}


def _needs_no_arguments(kind: type[nn.Module]) -> bool:
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return False
    return kind.__module__.split(".")[0] not in ("torch", "advibp")


def fingerprint(images: Split | Lazy) -> str:
    """Return a fingerprint of test images; "" if there are none."""
    return checkpoint.fingerprint(sample_few(images)) if len(images) else ""


def net_option(path: str | Path, recipe: Recipe) -> str:
    """Return the sentence that tells how to give the network of a run."""
    place = RunFolder(Path(path)).sources().get("net", {})
    where = place.get("path") or ("" if not nets.is_user_code(recipe.net) else recipe.net)
    if where:
        return f"{path} has a user-defined network; pass it as `net`, or as --net {where}."
    defined = f" of the class {place['class']}" if place.get("class") else f" ({recipe.net})"
    defined += f" in {place['file']}" if place.get("file") and place.get("class") else ""
    return (
        f"{path} has a user-defined network{defined}; pass it as `net`, or write a function that returns it and pass "
        "--net file.py:function."
    )


def data_source(path: str | Path, recipe: Recipe) -> str:
    """Return the name or the path of the data set of a run.

    Raises:
        UserError: the data were given in Python, or the file does not exist any more.
    """
    known = RunFolder(check_path("path", path)).sources().get("data", {})
    if known.get("kind") == "python":
        raise UserError(
            f"{path} was trained on data that were given in Python ({known.get('type')}) and are not in its folder; "
            f"pass --data FILE (in Python: data=...). {SAVE} writes such a file."
        )
    if known.get("kind") != "file":
        return recipe.data
    # The data of the training first; then a file of the same name in the current folder, as in a copied project.
    for candidate in (str(known.get("path")), str(Path(recipe.data).expanduser())):
        if os.path.exists(candidate):
            return candidate
    raise UserError(
        f"{path} was trained on {known.get('path')}, which does not exist; pass --data FILE (in Python: data=...)."
    )


def load_run_data(
    path: str | Path, recipe: Recipe, source: str | None = None, root: str | None = None
) -> tuple[Data, bool]:
    """Load the data set of a run for its test images.

    Args:
        path: the folder of the run.
        recipe: its recipe.
        source: another data set, name or path. Default: the run's.
        root: folder of data sets. Default: the recipe's data_root.

    Returns:
        The data set, and whether its test images are those of the run.

    Raises:
        UserError: the run's data are not known or do not exist, or the data set can't be read.
    """
    data = load_data(recipe, source or data_source(path, recipe), None, root, validate=False)
    expected = RunFolder(Path(path)).sources().get("data", {}).get("test")
    same = not expected or fingerprint(data.test) == expected
    if not same and source is None:
        message = f"The test images of {data_source(path, recipe)} have changed since the training of {path}."
        warnings.warn(message, OtherDataWarning, stacklevel=2)
    if source is not None and expected is None:  # a folder of an earlier version
        same = source == recipe.data
    return data, same or source is None


def continued_names(stored: Recipe, recipe: Recipe, named: Recipe) -> Recipe:
    """Return the recipe of a run that is continued: names that only Python has given are those of the folder.

    Args:
        stored: the recipe in the folder.
        recipe: the requested recipe, before `named_by_sources`.
        named: the same after it. Images are compared by their fingerprint and weights when they are loaded.
    """
    keys = ("data", "data_root", "size", "label", "limit", "validation", "net", "normalize")
    kept = {key: getattr(stored, key) for key in keys if getattr(named, key) != getattr(recipe, key)}
    if is_same_code(stored.net, named.net):
        kept["net"] = stored.net
    return dataclasses.replace(named, **kept)


def is_same_code(stored: str, requested: str) -> bool:
    """Return whether two names of networks may be the same code.

    The class of a network that was given in Python, and file.py:function, can't be compared; the weights are compared
    when they are loaded. A file may be named by different paths.
    """
    python = [name for name in (stored, requested) if not nets.is_known(name) and not nets.is_user_code(name)]
    if python:
        return not any(nets.is_known(name) for name in (stored, requested))
    both_code = nets.is_user_code(stored) and nets.is_user_code(requested)
    return stored == requested or (both_code and Path(stored).name == Path(requested).name)
