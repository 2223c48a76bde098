"""JSON, quiet output, old names, flags, suggestions, help and completion of the commands."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import call, halves

from advibp import cli

torch.set_num_threads(1)

TRAIN = "train data.npz 'FC 4' --epochs 3 --warmup-natural 1 --warmup-adversarial 0.5 --ramp 1 --eps 8/255 --threads 1"
CERTIFY = "--attack-steps 2 --limit 10 --threads 1"


def subparsers() -> dict[str, argparse.ArgumentParser]:
    (commands,) = (action for action in cli.parser()._actions if isinstance(action.choices, dict))
    return dict(commands.choices)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a run and its certificate."""
    folder = tmp_path_factory.mktemp("cli")
    x, y = halves(60)
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert call(f"{TRAIN} --out run --quiet") == 0
        assert call(f"certify run {CERTIFY}") == 0
    return folder


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (f"{TRAIN} --out again", "seconds"),
        (f"certify run {CERTIFY}", "eps"),
        (f"certify run --radius {CERTIFY}", "median"),
        (f"attack run {CERTIFY}", "eps"),
        ("compare run run/../run", 0),
        ("report run", "report"),
        ("watch run --once", 0),
        ("data", 0),
        ("data data.npz", "classes"),
        ("data check mnist", "files"),
        ("nets", 0),
        ("nets dm-small", 0),
        ("methods", 0),
        ("methods colt", "verifier"),
        ("recipes", 0),
        ("recipes demo", "epochs"),
        ("sweep data.npz 'FC 2' --vary method=ibp --epochs 3 --sample 5", "rows"),
        ("reproduce mnist-table --scale tiny --model dm-small --dry-run", "rows"),
    ],
)
def test_json_is_all_that_is_printed(
    command: str, key: Any, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    if "run/../run" in command:
        (here / "other").exists() or call(f"{TRAIN} --seed 1 --out other --quiet")
        command = "compare run other"
        capsys.readouterr()
    assert call(f"{command} --json") == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)[key] is not None


def test_json_has_numbers_and_people_read_fractions(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    assert call(f"certify run {CERTIFY} --json") == 0
    (row,) = json.loads(capsys.readouterr().out)["eps"]
    assert row["eps"] == 8 / 255
    assert sum(row["verdicts"].values()) == row["images"] == 10
    assert call(f"certify run {CERTIFY}") == 0
    assert "8/255" in capsys.readouterr().out


def test_quiet_prints_only_the_result(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    assert call(f"certify run {CERTIFY} --quiet") == 0
    printed = capsys.readouterr()
    assert "verified error" in printed.out
    assert "records:" not in printed.out
    assert printed.err == ""
    assert call(f"{TRAIN} --out third --quiet") == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == "third"
    assert "epoch" not in printed.out.replace("epochs", "")
    assert printed.err == ""


def test_json_of_errors_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("certify nowhere --json") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "dest", "value"),
    [
        ("certify run --steps 3", "attack_steps", 3),
        ("attack run --step 0.2", "attack_step_size", 0.2),
        ("attack run --restarts 2", "attack_restarts", 2),
        ("certify run --loss margin", "attack_loss", "margin"),
        ("sweep --vary seed=0 --pgd-steps 5", "test_attack_steps", 5),
        ("train --normalise true", "normalize", "true"),
    ],
)
def test_old_names_work_with_a_note(words: str, dest: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    args = cli.parser().parse_args(shlex.split(words))
    assert getattr(args, dest) == value
    (note,) = capsys.readouterr().err.splitlines()
    assert note == f"note: {words.split()[-2]} is now --{dest.replace('_', '-')}; use that."
    assert words.split()[-2] not in re.findall(r"--[\w-]+", subparsers()[words.split()[0]].format_help())


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--flip mnist dm-small", "true"),
        ("mnist dm-small --flip", "true"),
        ("mnist dm-small --flip --crop 2", "true"),
        ("mnist dm-small --flip true", "true"),
        ("mnist dm-small --flip=false", "false"),
        ("mnist dm-small --no-flip", "false"),
        ("mnist dm-small", None),
    ],
)
def test_flags(words: str, value: str | None) -> None:
    args = cli.parser().parse_args(["train", *words.split()])
    assert (args.data, args.net, args.flip) == ("mnist", "dm-small", value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("trian", "there is no command 'trian'; did you mean train?"),
        ("train --methd x", "advibp train has no option --methd; did you mean --method?"),
        ("train --methd=x", "did you mean --method?"),
        ("certify run --esp 0.1", "did you mean --eps?"),
        ("certify run --atack-steps 3", "did you mean --attack-steps?"),
        ("certify run --norm l2", "only l_inf is supported"),
        ("train --norm l2", "only l_inf is supported"),
        ("certify run --attack pdg", "did you mean pgd?"),
        ("certify run more", "'more' is one argument too many"),
        ("watch run --xyzzy", "advibp watch has no option --xyzzy"),
    ],
)
def test_mistyped_names_get_a_suggestion(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(words) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_is_complete_and_fits_eighty_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = subparsers()[name]
    lines = parser.format_help().splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert parser.description
    shown = [line.strip() for line in str(parser.epilog).splitlines() if line.startswith("  advibp ")]
    assert len(shown) >= 2
    for example in shown:
        words = shlex.split(example.partition(" > ")[0])
        assert words[:2] == ["advibp", name]
        cli.parser().parse_args(words[1:])
    for action in parser._actions:
        assert action.help, action.option_strings


def test_every_command_with_a_result_has_json() -> None:
    without = [name for name, parser in subparsers().items() if "--json" not in parser._option_string_actions]
    assert set(without) <= {"predict", "completion"}


def test_recipe_options_are_in_groups() -> None:
    titles = [str(group.title) for group in subparsers()["train"]._action_groups]
    assert {"run", "output", "recipe: task", "recipe: phases", "recipe: optimizer"} <= set(titles)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert call(f"completion {shell}") == 0
    script = capsys.readouterr().out
    assert "certify" in script
    assert "attack-steps" in script


def test_the_package_is_a_program() -> None:
    shown = subprocess.run([sys.executable, "-m", "advibp", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("advibp ")
