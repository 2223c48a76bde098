"""The command `advibp completion`, which prints a script for the user's shell."""

from __future__ import annotations

import argparse

from advibp.cli.parser import examples
from advibp.errors import UserError

SHELLS = ("bash", "zsh", "tcsh")


def completion_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a script with which the shell completes commands and options of advibp when you press Tab. Needs the "
        "package shtab."
    )
    parser.epilog = examples(
        ("completion bash > ~/.local/share/bash-completion/completions/advibp", "bash"),
        ("completion zsh > ~/.zfunc/_advibp", "zsh, if ~/.zfunc is in $fpath"),
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    parser.set_defaults(command=run_completion)


def run_completion(args: argparse.Namespace) -> None:
    try:
        import shtab
    except ImportError:
        raise UserError("Completion needs the package shtab; install it: pip install 'advibp[completion]'.") from None
    print(shtab.complete(args.top, args.shell))
