"""Tables of the documentation that are generated from the code: recipe keys, methods, structures, results, ...

A generated table is between `<!-- table: NAME -->` and `<!-- end of table -->`. `python docs/hooks/tables.py` writes
all tables into the pages; `make docs` runs it, and a test checks that the pages are up to date.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from advibp import nets
from advibp.cli import parser
from advibp.cli.list_commands import _cost
from advibp.methods import METHODS
from advibp.recipe import KEY_GROUPS, Recipe, option_text, read, shipped
from advibp.reproduce import PLANS

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"^<!-- table: ([\w ]+) -->\n.*?^<!-- end of table -->$", re.MULTILINE | re.DOTALL)


def updated(markdown: str) -> str:
    """Return a page with its tables as the code generates them now."""
    return MARK.sub(lambda mark: f"<!-- table: {mark[1]} -->\n\n{TABLES[mark[1]]()}\n\n<!-- end of table -->", markdown)


def update_all() -> None:
    """Write the tables into all pages."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        if updated(text) != text:
            page.write_text(updated(text), "utf-8")
            print(f"updated {page.relative_to(ROOT)}")


def recipe_keys() -> str:
    fields = {field.name: field for field in dataclasses.fields(Recipe)}
    parts = []
    for title, keys in KEY_GROUPS.items():
        rows = [
            (f"`{key}`", f"`{option_text(fields[key].default)}`", fields[key].metadata["description"]) for key in keys
        ]
        parts.append(f"### {title}\n\n{table(('key', 'default', 'meaning'), rows)}")
    return "\n\n".join(parts)


def commands() -> str:
    """Every command with its description, usage, examples and options, from the parsers."""
    (listed,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join(_command(name, command) for name, command in listed.choices.items())


def _command(name: str, command: argparse.ArgumentParser) -> str:
    paragraphs = [
        f"```text\n{part}\n```" if part.startswith("  ") else part for part in str(command.description).split("\n\n")
    ]
    usage = str(command.usage or command.format_usage().removeprefix("usage: ")).rstrip()
    parts = [f"## advibp {name}", *paragraphs, f"```text\n{usage}\n\n{command.epilog}\n```"]
    formatter = command.formatter_class(command.prog)
    for group in command._action_groups:
        actions = [a for a in group._group_actions if a.help != argparse.SUPPRESS and "--help" not in a.option_strings]
        rows = [
            (f"`{formatter._format_action_invocation(action)}`", formatter._expand_help(action)) for action in actions
        ]
        if rows:
            head = {"positional arguments": "argument", "options": "option"}.get(str(group.title), str(group.title))
            parts.append(table((head, "meaning"), rows))
    return "\n\n".join(parts)


def shipped_recipes() -> str:
    rows = []
    for name, file in shipped().items():
        first = file.read_text("utf-8").splitlines()[0].lstrip("# ")
        recipe = Recipe.load(name)
        rows.append((f"`{name}`", first, f"{recipe.eps:.4g}", f"{recipe.epochs:g}", str(recipe.stages)))
    return table(("name", "description", "eps_train", "epochs", "stages"), rows)


def methods() -> str:
    marks = {True: "✓", False: "", None: "–"}
    rows = [
        (
            f"`{name}`",
            row.description,
            row.verifier or "–",
            *(marks[value] for value in row.properties),
            _cost(name),
            row.limitations,
        )
        for name, row in METHODS.items()
    ]
    return table(("method", "loss", "verifier", "E", "R", "P", "W", "cost", "limitations"), rows)


def method_keys() -> str:
    rows = []
    for name, row in METHODS.items():
        own = ", ".join(f"`{key}: {option_text(value)}`" for key, value in row.recipe.items())
        weights = str(row.weighting) if row.lower and row.upper else "–"
        keys = ", ".join(f"`{key}`" for key in row.recipe_keys)
        rows.append((f"`{name}`", weights, {None: "–", "box": "boxes", "zonotope": "zonotopes"}[row.latent], keys, own))
    return table(("method", "weighting", "layer-wise stages", "own recipe keys", "its defaults"), rows)


def structures() -> str:
    rows = []
    for name, text in nets.STRUCTURES.items():
        parameters = sum(p.numel() for p in nets.build(name).parameters())
        rows.append((f"`{name}`", text, f"{parameters:,}"))
    return table(("name", "structure", "parameters on 1x28x28"), rows)


def published() -> str:
    rows = []
    for name in shipped():
        for net, numbers in (read(name).get("published") or {}).items():
            rows += [
                (f"`{name}`", net, eps, *("" if n is None else f"{n:.2f}" for n in n3)) for eps, n3 in numbers.items()
            ]
    return table(("recipe", "network", "eps", "standard", "verified", "PGD-200"), rows)


def reproducible() -> str:
    return table(("name", "result"), [(f"`{name}`", plan.description) for name, plan in PLANS.items()])


def results() -> str:
    pages = [*ROOT.glob("results/*.md"), *ROOT.glob("results/*/README.md")]
    lines = []
    for page in sorted(pages):
        heading = page.read_text("utf-8").splitlines()[0].lstrip("# ")
        lines.append(f"- [{heading}](../{page.relative_to(ROOT).as_posix()})")
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "recipe keys": recipe_keys,
    "shipped recipes": shipped_recipes,
    "methods": methods,
    "method keys": method_keys,
    "structures": structures,
    "published": published,
    "reproduce": reproducible,
    "results": results,
}


if __name__ == "__main__":
    update_all()
