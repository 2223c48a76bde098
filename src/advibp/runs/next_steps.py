"""The commands that come next, as people type them."""

from __future__ import annotations

import shlex
from pathlib import Path

from advibp import nets
from advibp.methods import METHODS, Method
from advibp.recipe import Recipe


def has_command(recipe: Recipe) -> bool:
    """Whether a command line can name its network and its method."""
    return (nets.is_known(recipe.net) or nets.is_own(recipe.net)) and not recipe.method.startswith("python:")


def how_to_go_on(recipe: Recipe, path: Path) -> str:
    """What continues a run."""
    if not has_command(recipe):
        return f"advibp.train(..., out={str(path)!r}, resume=True)"
    # What is one's own runs only if it is typed.
    named = [recipe.data, recipe.net] if nets.is_own(recipe.net) else []
    method = [] if recipe.method in METHODS else ["--method", recipe.method]
    return shlex.join(["advibp", "train", *named, *method, "--resume", "--out", str(path)])


def how_to_certify(recipe: Recipe, path: Path, method: Method | None = None) -> str:
    """What certifies a finished run; `method` where it is one's own, which a recipe only names."""
    own = ["--net", recipe.net if nets.is_own(recipe.net) else "file.py:function"]
    by = _verifier(recipe, method or METHODS.get(recipe.method))
    words = ["advibp", "certify", str(path), "--eps", str(recipe.eps), *(["--by", "ibp", by] if by else [])]
    return shlex.join([*words, *([] if nets.is_known(recipe.net) else own)])


def _verifier(recipe: Recipe, method: Method | None) -> str:
    """By what the network was trained to be proved, if not by IBP."""
    if method is None:
        return ""
    verifier = "crown-ibp" if "beta" in method.reads and recipe.beta > 0 else method.verifier
    return "" if verifier == "ibp" else verifier
