"""Read recipe files: the shipped ones and the user's. Keys of older releases are renamed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from advibp.errors import UserError
from advibp.storage.plain_yaml import from_yaml

#: Keys of release 0.1 that have been renamed.
OLD_KEYS = {"normalise": "normalize", "regulariser": "regularizer"}


def current_keys(keys: Mapping[str, Any], warn: bool = False) -> dict[str, Any]:
    """Rename the keys of release 0.1."""
    for old in OLD_KEYS.keys() & keys.keys() if warn else ():
        warnings.warn(f"The recipe key {old} is now {OLD_KEYS[old]}; use that.", DeprecationWarning, stacklevel=3)
    return {OLD_KEYS.get(str(key), key): value for key, value in keys.items()}


def shipped() -> dict[str, Any]:
    """Return the shipped recipes by name: `demo`, `paper/mnist-0.4`, `field/mnist-0.1-sabr`, ..."""
    root = resources.files("advibp") / "recipe" / "shipped"
    found = {f.name[:-5]: f for f in root.iterdir() if f.name.endswith(".yaml")}
    for group in ("paper", "field"):
        found |= {f"{group}/{f.name[:-5]}": f for f in (root / group).iterdir() if f.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def read(source: str | Path) -> dict[str, Any]:
    """Return the keys that a recipe sets. source: the name of a shipped recipe, or a YAML file."""
    recipes = shipped()
    file = recipes.get(str(source), Path(source))
    try:
        loaded = from_yaml(file.read_text("utf-8"))
    except OSError:
        near = get_close_matches(str(source), recipes, n=3) or ["demo"]
        raise UserError(
            f"There is no recipe '{source}'; give a YAML file or a name from `advibp recipes`, such as "
            f"{', '.join(near)}."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(
            f"{source} is no valid YAML ({' '.join(str(error).split())}); a recipe has lines such as 'lr: 0.001'."
        ) from None
    if not isinstance(loaded, dict):
        raise UserError(f"{source} holds no recipe: expected lines such as 'lr: 0.001'.")
    return loaded
