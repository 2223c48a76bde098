"""A command in a child process is ended at its deadline, whatever it does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import pytest

from advibp.cli.supervised import run_supervised


def _late() -> int:
    return 1


def test_exit_code_of_a_command_in_time() -> None:
    def command(before_output: Callable[[], None]) -> int:
        before_output()
        return 7

    assert run_supervised(command, time.monotonic() + 600, _late) == 7


def test_command_that_never_ends_is_ended() -> None:
    def command(_: Callable[[], None]) -> int:
        time.sleep(3000)
        return 0

    assert run_supervised(command, time.monotonic() + 0.1, _late) == 1


def test_command_that_has_a_result_is_not_ended() -> None:
    def command(before_output: Callable[[], None]) -> int:
        before_output()
        time.sleep(0.5)
        return 3

    assert run_supervised(command, time.monotonic() + 0.4, _late) == 3


def test_command_that_crashes_has_no_result() -> None:
    def command(_: Callable[[], None]) -> int:
        raise RuntimeError("broken")

    assert run_supervised(command, time.monotonic() + 600, _late) == 2


def test_signals_are_blocked_by_nothing_but_the_child() -> None:
    """A child that ignores every signal, as a solver in C does, is ended too."""
    code = """
        import signal, time
        from advibp.cli.supervised import run_supervised

        def command(_):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
                signal.signal(number, signal.SIG_IGN)
            while True:
                time.sleep(1)

        def late():
            print("timeout")
            return 1

        raise SystemExit(run_supervised(command, time.monotonic() + 0.1, late))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("timeout\n", 1)


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_does_not_import_torch(words: list[str]) -> None:
    code = f"""
        import sys
        from advibp.cli import main
        try:
            main({words!r})
        except SystemExit:
            print("torch" in sys.modules, file=sys.stderr)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"
