"""`advibp data`: lists, fetches, checks, and shows how one's own data is understood."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from stand_ins import stand_in
from web import serve

from advibp import cli, data
from advibp.data.fetch import catalogue
from advibp.display.progress import Fetching


def call(*words: object) -> int:
    return cli.main(["data", *map(str, words)])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """The catalogue with small stand-ins; the files to serve."""
    made = [stand_in(row.name) for row in catalogue.ROWS if row.base_url is not None]
    monkeypatch.setattr(catalogue, "ROWS", (catalogue.find("mnist"), *(row for row, _, _ in made)))
    monkeypatch.setenv("ADVIBP_DATA", str(tmp_path / "root"))
    return {path: body for _, files, _ in made for path, body in files.items()}


def test_the_names_are_the_same_everywhere() -> None:
    assert set(data.NAMES) == set(catalogue.NAMES)


def test_the_list_tells_name_and_state_of_every_set(
    small: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(small) as site:
        catalogue.fetch("cifar10", mirror=site.url)
    assert call() == 0
    said = capsys.readouterr().out
    for name, state in [("mnist", "included"), ("cifar10", "complete"), ("svhn", "missing"), ("gtsrb", "missing")]:
        assert re.search(rf"^│ {name} .*{state}", said, re.MULTILINE)
    assert f"cifar10 is in {tmp_path / 'root' / 'cifar-10-batches-bin'}" in said
    (tmp_path / "root" / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    assert call() == 0
    assert re.search(r"^│ cifar10 .*damaged", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("name", ["cifar10", "gtsrb"])
def test_fetch_then_check(
    name: str,
    small: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "elsewhere"
    assert call("check", name, "--data-root", root) == 2
    assert "is missing" in capsys.readouterr().err
    with serve(small) as site:
        monkeypatch.setenv("ADVIBP_MIRROR", site.url)
        assert call("fetch", name, "--data-root", root) == 0
    assert call("check", name, "--data-root", root) == 0
    assert f"{name} is complete" in capsys.readouterr().out
    victim = max(p for p in catalogue.folder_of(name, root).rglob("*") if p.is_file() and p.name != catalogue.LISTING)
    victim.write_bytes(victim.read_bytes()[::-1])
    assert call("check", name, "--data-root", root) == 2
    out, err = capsys.readouterr()
    assert f"{victim.name}: wrong checksum" in out
    assert re.fullmatch(rf"error: {name} is damaged: 1 of .* 'advibp data fetch {name}' replaces it\.\n", err)


@pytest.mark.parametrize(
    "words", [("fetch",), ("check",), ("check", "cifar"), ("fetch", "a", "b"), ("a", "b"), ("no-such-folder/",)]
)
def test_a_mistake_is_told_in_one_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: .*\n", err)


def test_a_set_is_not_fetched_to_be_looked_at(small: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("svhn") == 2
    assert "advibp data fetch svhn" in capsys.readouterr().err


def test_ones_own_file_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.zeros((6, 5, 4, 3), dtype=np.uint8)
    y = np.array([0, 1, 1, 2, 2, 2])
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    assert call(tmp_path / "own.npz") == 0
    said = capsys.readouterr().out
    assert "own: 6 training images, 3 test images, 3x5x4, 3 classes" in said
    counts = [tuple(map(int, re.findall(r"\d+", line))) for line in said.splitlines() if line.startswith("│")]
    assert counts == [(0, 1, 1), (1, 2, 2), (2, 3, 0)]


def test_ones_own_folder_is_described_by_the_names_of_its_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, count in [("train", 3), ("test", 1)]:
        for name in ("cat", "do[g]"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (9 + i, 9)).save(tmp_path / part / name / f"{i}.png")
    assert call(tmp_path, "--size", 8) == 0
    said = capsys.readouterr().out
    assert "6 training images, 2 test images, 3x8x8, 2 classes" in said
    assert re.search(r"│ 1 do\[g\] +│ 3 +│ 1 +│", said)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_in_bytes(terminal: bool) -> None:
    out = io.StringIO()
    with Fetching(Console(file=out, force_terminal=terminal, width=100)) as fetching:
        fetching.last_line -= 10
        fetching.progress("a [file]", 500_000, 2_000_000)
        fetching.progress("a [file]", 600_000, 2_000_000)
        for _ in range(3):
            fetching.progress("waiting", 0, None)
        fetching.progress("another", 0, 0)
    said = out.getvalue()
    assert "a [file]" in said
    if not terminal:
        assert said.splitlines() == ["a [file]: 0.5 of 2.0 MB", "waiting"]


def test_progress_that_never_began_prints_nothing() -> None:
    out = io.StringIO()
    with Fetching(Console(file=out, force_terminal=True)):
        pass
    assert out.getvalue() == ""
