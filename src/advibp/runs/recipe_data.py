"""The data that a recipe asks for, told while it is fetched."""

from __future__ import annotations

from advibp import data as datasets
from advibp.display.progress import Fetching
from advibp.recipe import Recipe


def load_data(
    recipe: Recipe, source: str, limit: int | None, root: str | None = None, *, validate: bool = True
) -> datasets.Data:
    """The data set of a recipe, or another `source`; without `validate` no training images are held out."""
    with Fetching() as fetching:
        return datasets.load(
            source,
            validation=recipe.validation if validate else 0,
            limit=limit,
            root=root or recipe.data_root,
            size=recipe.size,
            progress=fetching.progress,
        )
