"""Recipes: every option of a run, with its type, default and help; the shipped YAML files."""

from advibp.recipe.recipe import OLD_KEYS, Recipe, current_keys, method_name, read, shipped

__all__ = ["OLD_KEYS", "Recipe", "current_keys", "method_name", "read", "shipped"]
