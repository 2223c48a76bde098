"""The verifiers that fit a training method."""

from __future__ import annotations

from collections.abc import Sequence

from advibp.methods import METHODS, Method
from advibp.recipe import Recipe
from advibp.verify.verifiers import in_order

#: Verifiers that bound all images of a batch together, for networks that IBP alone proves badly.
CHEAP = ("ibp", "crown-ibp", "crown")


def trained_verifier(recipe: Recipe, method: Method | None = None) -> str:
    """Return the verifier for which the recipe's method trains; "" if it trains for none, or is not known.

    Args:
        recipe: the recipe.
        method: the method, if it is the user's.
    """
    method = method or METHODS.get(recipe.method)
    if method is None:
        return ""
    return "crown-ibp" if "beta" in method.recipe_keys and recipe.beta > 0 else method.verifier


def fitting_verifiers(trained: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the verifiers that fit each of several networks, which are compared with each other.

    IBP alone is enough if all networks were trained for it. Otherwise all of them get the cheap verifiers as well, so
    that the comparison is fair, and each gets the one that it was trained for.

    Args:
        trained: for each network the verifier for which it was trained; "" for none.

    Examples:
        >>> fitting_verifiers(["ibp", "ibp"])
        [('ibp',), ('ibp',)]
        >>> fitting_verifiers(["ibp", "deepz"])
        [('ibp', 'crown-ibp', 'crown'), ('ibp', 'crown-ibp', 'crown', 'deepz')]
    """
    if set(trained) <= {"ibp"}:
        return [("ibp",) for _ in trained]
    return [tuple(in_order([*CHEAP, *([name] if name else [])])) for name in trained]
