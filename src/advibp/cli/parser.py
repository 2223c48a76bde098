"""The argument parser of the commands: suggestions for mistyped names, flags, old names, help with examples."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from advibp.display.terminal import printable
from advibp.errors import NORM_NAMES, ONLY_LINF, suggestion

_FLAG = "true|false"  # the metavar of a flag
_TRUTH = ("true", "yes", "on", "1", "false", "no", "off", "0")


def one_line(message: str) -> str:
    """Return a message as one printable line."""
    return printable(" ".join(message.split()))


class Parser(argparse.ArgumentParser):
    """Prints errors on one line with a suggestion, and does not accept abbreviated options.

    Attributes:
        flags: options that may have a value (--flip false) and may have none (--flip).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": Help, **kwargs, "allow_abbrev": False})
        self.flags: set[str] = set()

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else ";"
        self.exit(2, f"{one_line(f'error: {message}{end} see {self.prog} --help')}\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments, and refuse unknown ones with a suggestion."""
        words = self._with_values(list(sys.argv[1:] if args is None else args))
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(self._about_unknown(unknown))
        return parsed, unknown

    def _with_values(self, words: list[str]) -> list[str]:
        """Write --flip as --flip=true unless a truth value follows, so that it does not take the next argument."""
        following = [*words, ""][1:]
        return [
            f"{word}=true" if word in self.flags and after.lower() not in _TRUTH else word
            for word, after in zip(words, following, strict=True)
        ]

    def _about_unknown(self, unknown: Sequence[str]) -> str:
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not options:
            return f"'{unknown[0]}' is one argument too many for {self.prog}, or comes after an option; write it before"
        if options[0].lstrip("-").replace("-", "_") in NORM_NAMES:
            return f"{self.prog} has no option {options[0]}, because {ONLY_LINF}"
        return f"{self.prog} has no option {options[0]}; {suggestion(options[0], self._visible(), ' ')}".rstrip("; ")

    def _visible(self) -> list[str]:
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return [name for action in shown for name in action.option_strings if name.startswith("--") and "_" not in name]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command '{value}'; {suggestion(value, known)}")
        raise argparse.ArgumentError(action, f"'{value}' is not valid; {suggestion(value, known)}".rstrip("."))

    def add_flag(self, name: str, *, help: str, dest: str, group: Any = None, aliases: Sequence[str] = ()) -> None:
        """Add --NAME and --no-NAME, whose value is the text true or false. `--NAME true` works too."""
        place = group or self
        names = [f"--{name}", *aliases]
        self.flags.update(names)
        place.add_argument(*names, dest=dest, help=help, metavar=_FLAG)
        no = [f"--no-{old[2:]}" for old in names]
        place.add_argument(*no, dest=dest, action="store_const", const="false", help=argparse.SUPPRESS)

    def add_old_name(self, old: str, new: str, **options: Any) -> None:
        """Add an option by its old name, after the new one. It works, is not in the help, and prints a note.

        Args:
            old: the old name, such as --steps.
            new: the option that has replaced it.
            options: arguments of `add_argument`.
        """
        dest = new[2:].replace("-", "_")
        self.add_argument(old, dest=dest, action=_OldName, help=argparse.SUPPRESS, **options)


class _OldName(argparse._StoreAction):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        print(f"note: {option} is now --{self.dest.replace('_', '-')}; use that.", file=sys.stderr)
        setattr(namespace, self.dest, values)


class Help(argparse.HelpFormatter):
    """Wraps the description, keeps the lines of examples and lists, and adds defaults to the help of options."""

    def __init__(self, prog: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(prog, *args, **{"max_help_position": 26, **kwargs})

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):  # its commands are indented
            self._action_max_length += 2

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap each paragraph. A paragraph whose lines are indented is kept."""
        paragraphs = [
            part if re.search(r"^ ", part, re.MULTILINE) else textwrap.fill(" ".join(part.split()), width)
            for part in text.split("\n\n")
        ]
        return textwrap.indent("\n\n".join(paragraphs), indent)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default, text = action.default, action.help
        if text is None or default is None or default is False or not action.option_strings:
            return text
        if default in ([], "", argparse.SUPPRESS):
            return text
        if "%(default)" in text or "default:" in text.lower():
            return text
        if isinstance(default, list | tuple):
            return f"{text} (default: {' '.join(map(str, default))})"
        return f"{text} (default: %(default)s)"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show --batch-size, but not its alias --batch_size; a flag as --flip, --no-flip."""
        names = [name for name in action.option_strings if "_" not in name]
        if action.metavar == _FLAG:
            return f"{names[0]}, --no-{names[0][2:]}"
        kept, action.option_strings = action.option_strings, names
        try:
            return super()._format_action_invocation(action)
        finally:
            action.option_strings = kept


def examples(*pairs: tuple[str, str]) -> str:
    """Return the end of a help: examples as (command without "advibp", comment).

    A command may have several lines, which end in a backslash.
    """
    lines = ["examples:"]
    for command, comment in pairs:
        lines += [f"  # {comment}"] * bool(comment) + [f"  advibp {command}"]
    return "\n".join(lines)


def output_options(parser: argparse.ArgumentParser, *, progress: bool = True) -> None:
    """Add --json, --quiet and, for a command that shows progress, --no-progress."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else, on stdout")
    group.add_argument("-q", "--quiet", action="store_true", help="print only errors and the result")
    if progress:
        group.add_argument("--no-progress", action="store_true", help="show no progress")
