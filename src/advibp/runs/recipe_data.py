"""Load the data set of a recipe, with a progress bar while it is downloaded."""

from __future__ import annotations

from advibp import data as datasets
from advibp.display.progress import Fetching
from advibp.recipe import Recipe


def load_data(
    recipe: Recipe,
    source: str,
    limit: int | None,
    root: str | None = None,
    *,
    validate: bool = True,
    test: bool = True,
) -> datasets.Data:
    """Load a data set with the options of a recipe.

    Args:
        recipe: options: validation, size, label, data_root.
        source: name or path of the data set.
        limit: number of training images; None for all.
        root: folder of data sets; by default the recipe's data_root.
        validate: hold out training images for validation.
        test: read the test images; otherwise the test set is empty.
    """
    with Fetching() as fetching:
        return datasets.load(
            source,
            validation=recipe.validation if validate else 0,
            limit=limit,
            root=root or recipe.data_root,
            size=recipe.size,
            label=recipe.label,
            test=test,
            progress=fetching.progress,
        )
