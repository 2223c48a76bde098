"""Recipes: every option of a run, with its type, default and help; the shipped YAML files."""

from advibp.recipe.recipe import Recipe, method_name
from advibp.recipe.recipe_files import OLD_KEYS, current_keys, read, shipped
from advibp.recipe.recipe_text import KEY_GROUPS, option_text

__all__ = ["KEY_GROUPS", "OLD_KEYS", "Recipe", "current_keys", "method_name", "option_text", "read", "shipped"]
