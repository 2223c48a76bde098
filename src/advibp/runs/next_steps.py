"""The commands that continue or certify a run, as a user types them."""

from __future__ import annotations

import shlex
from pathlib import Path

from advibp import nets
from advibp.display.eps import exact_eps
from advibp.methods import METHODS, Method
from advibp.recipe import Recipe
from advibp.runs.fitting_verifiers import trained_verifier
from advibp.storage.run_folder import RunFolder


def has_command(recipe: Recipe) -> bool:
    """Return whether the command line can name the recipe's network and method."""
    return (nets.is_known(recipe.net) or nets.is_user_code(recipe.net)) and not recipe.method.startswith("python:")


def how_to_go_on(recipe: Recipe, path: Path) -> str:
    """Return the command, or the Python call, that resumes a run."""
    if not has_command(recipe) or RunFolder(path).sources().get("data", {}).get("kind") == "python":
        return f"advibp.train(..., out={str(path)!r}, resume=True)"
    # User code is run only if the user types its name.
    data_and_net = [recipe.data, recipe.net] if nets.is_user_code(recipe.net) else []
    method = [] if recipe.method in METHODS else ["--method", recipe.method]
    return shlex.join(["advibp", "train", *data_and_net, *method, "--resume", "--out", str(path)])


def how_to_train(recipe: Recipe, path: Path | None) -> str | None:
    """Return the command that trains a run into a folder; None if no command can name its network or method.

    No command can name the initial weights of a network that was built in Python.
    """
    if not has_command(recipe) or (nets.is_known(recipe.net) and recipe.init == "given"):
        return None
    return recipe.command() + (f" --out {shlex.quote(str(path))}" if path else "")


def how_to_certify(recipe: Recipe, path: Path, method: Method | None = None) -> str:
    """Return the command that certifies a finished run. A user's method is passed as `method`."""
    user_net = ["--net", recipe.net if nets.is_user_code(recipe.net) else "file.py:function"]
    by = trained_verifier(recipe, method)
    verifiers = [] if by in ("", "ibp") else ["--by", "ibp", by]
    words = ["advibp", "certify", str(path), "--eps", exact_eps(recipe.eps), *verifiers]
    return shlex.join([*words, *([] if nets.is_known(recipe.net) else user_net)])
