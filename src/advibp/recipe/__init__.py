"""Recipes: every option of a run, with its type, default and help; the shipped YAML files."""

from advibp.recipe.recipe import Recipe, method_name, read, shipped

__all__ = ["Recipe", "method_name", "read", "shipped"]
