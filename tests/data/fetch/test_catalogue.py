"""Fetching, checking and replacing data sets, tested with small stand-ins for the real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stand_ins import stand_in, sum_of, tar_of
from web import serve

from advibp.data import load
from advibp.data.fetch import catalogue
from advibp.data.fetch.catalogue import LISTING, check, fetch, find, folder_of, locate, root_folder, state
from advibp.data.fetch.known_sets import NAMES, ROWS
from advibp.errors import UserError


def held(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


FETCHED = [row.name for row in ROWS if row.base_url is not None]


def test_the_table_is_consistent() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({row.folder for row in ROWS}) == len(ROWS)
    lengths = {"md5": 32, "sha1": 40, "sha256": 64}
    for row in ROWS:
        for file in (*row.remotes, *row.files):
            algorithm, _, digest = file.checksum.partition(":")
            assert len(digest) == lengths[algorithm]
            assert digest == digest.lower()
            int(digest, 16)
            assert file.size
        assert (row.base_url is None) == (not row.remotes)
        assert row.page.startswith("http")
        assert row.terms


def test_cifar10_files_have_ten_thousand_records() -> None:
    assert {file.size for file in find("cifar10").files} == {10_000 * (1 + 3 * 32 * 32)}


def test_mnist_is_included(tmp_path: Path) -> None:
    assert state("mnist", tmp_path) == "included"
    assert set(check("mnist").values()) == {""}
    assert locate("mnist", tmp_path, fetch=False) == fetch("mnist", tmp_path) == folder_of("mnist")
    assert list(tmp_path.iterdir()) == []


def test_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ADVIBP_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert root_folder(tmp_path / "given") == tmp_path / "given"
    assert root_folder("~/sets") == Path.home() / "sets"
    assert root_folder() == tmp_path / "env"
    monkeypatch.delenv("ADVIBP_DATA")
    assert root_folder() == tmp_path / "cache" / "advibp"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert root_folder() == Path.home() / ".cache" / "advibp"


def test_an_unknown_name() -> None:
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        find("cifar-10")


@pytest.mark.parametrize("name", FETCHED)
def test_every_set_is_fetched_checked_and_located(name: str, tmp_path: Path) -> None:
    row, files, inside = stand_in(name)
    with serve(files) as site:
        assert state(row, tmp_path) == "missing"
        folder = fetch(row, tmp_path, mirror=f"{site.url}/")
        asked = len(site.asked)
        assert fetch(row, tmp_path, mirror=site.url) == folder
        assert len(site.asked) == asked
    assert locate(row, tmp_path, fetch=False) == folder == tmp_path / row.folder
    assert {n: b for n, b in held(folder).items() if n != LISTING} == inside
    assert state(row, tmp_path) == "complete"
    assert set(check(row, tmp_path).values()) == {""}
    assert list((tmp_path / ".fetch").iterdir()) == []


@pytest.mark.parametrize("name", FETCHED)
def test_damaged_files_are_detected_and_replaced(name: str, tmp_path: Path) -> None:
    row, files, inside = stand_in(name)
    with serve(files) as site:
        folder = fetch(row, tmp_path, mirror=site.url)
        victim = folder / min(inside)
        victim.unlink()
        assert state(row, tmp_path) == "damaged"
        assert check(row, tmp_path)[min(inside)] == "missing"
        with pytest.raises(UserError, match="damaged"):
            locate(row, tmp_path, fetch=False)
        fetch(row, tmp_path, mirror=site.url)
        assert victim.read_bytes() == inside[min(inside)]
        victim.write_bytes(b"")
        assert check(row, tmp_path)[min(inside)] == "wrong size"
        assert state(row, tmp_path) == "damaged"
        victim.write_bytes(inside[min(inside)][::-1])
        assert check(row, tmp_path)[min(inside)] == "wrong checksum"
        fetch(row, tmp_path, mirror=site.url)
    assert {n: b for n, b in held(folder).items() if n != LISTING} == inside


def test_the_listing_is_what_sha256sum_reads(tmp_path: Path) -> None:
    row, files, _ = stand_in("gtsrb")
    with serve(files) as site:
        folder = fetch(row, tmp_path, mirror=site.url)
    run = subprocess.run(["sha256sum", "--check", "--strict", "--quiet", LISTING], cwd=folder, capture_output=True)
    assert run.returncode == 0


def test_gtsrb_can_be_loaded_after_it_was_fetched(tmp_path: Path) -> None:
    row, files, inside = stand_in("gtsrb")
    with serve(files) as site:
        folder = fetch(row, tmp_path, mirror=site.url)
    data = load(folder, validation=0)
    assert (len(data.train), len(data.test), data.classes) == (12, 5, 3)
    assert data.test.y.tolist() == [0, 1, 2, 0, 1]
    first = np.frombuffer(inside["test/00000.ppm"][-48:], dtype=np.uint8).reshape(4, 4, 3).transpose(2, 0, 1)
    np.testing.assert_allclose(data.test.x[0].numpy(), first / 255, atol=1e-6)


def test_tinyimagenet_can_be_loaded_after_it_was_fetched(tmp_path: Path) -> None:
    row, files, _ = stand_in("tinyimagenet")
    with serve(files) as site:
        folder = fetch(row, tmp_path, mirror=site.url)
    assert state(row, tmp_path) == "complete"
    data = load(folder, validation=0)
    assert (len(data.train), len(data.test), data.classes) == (8, 3, 2)


def test_the_mirror_replaces_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, files, _ = stand_in("cifar10")
    monkeypatch.delenv("ADVIBP_MIRROR", raising=False)
    with serve(files) as site:
        locate(replace(row, base_url=f"{site.url}/cifar10"), tmp_path / "home")
        monkeypatch.setenv("ADVIBP_MIRROR", site.url)
        locate(row, tmp_path / "mirror")
        assert len(site.asked) == 2
    assert held(tmp_path / "home" / row.folder) == held(tmp_path / "mirror" / row.folder)


def test_the_error_for_a_missing_set_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="advibp data fetch cifar10") as error:
        locate("cifar10", tmp_path, fetch=False)
    assert str(tmp_path / "cifar-10-batches-bin") in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    row, files, inside = stand_in("cifar10")
    other = tar_of({f"{row.folder}/{n}": b[::-1] for n, b in inside.items()})
    (path,) = files
    remote = replace(row.remotes[0], size=len(other), checksum=sum_of(other))
    with serve({path: other}) as site, pytest.raises(UserError, match="not the original"):
        fetch(replace(row, remotes=(remote,)), tmp_path, mirror=site.url)
    assert state(row, tmp_path) == "missing"


def test_files_of_the_user_are_never_deleted(tmp_path: Path) -> None:
    row, files, _ = stand_in("cifar10")
    (tmp_path / row.folder).mkdir()
    (tmp_path / row.folder / "thesis.txt").write_text("mine")
    with serve(files) as site:
        with pytest.raises(UserError, match=r"thesis\.txt"):
            fetch(row, tmp_path, mirror=site.url)
        assert site.asked == []
    assert held(tmp_path / row.folder) == {"thesis.txt": b"mine"}


def test_a_server_without_the_file(tmp_path: Path) -> None:
    row, _, _ = stand_in("svhn")
    with serve({}) as site, pytest.raises(UserError, match="404"):
        fetch(row, tmp_path, mirror=site.url)
    assert not (tmp_path / row.folder).exists()


def test_a_root_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        fetch(stand_in("svhn")[0], tmp_path / "file")


def test_concurrent_calls_fetch_once(tmp_path: Path) -> None:
    row, files, inside = stand_in("cifar10")
    with serve(files) as site, ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(fetch, row, tmp_path, None, site.url) for _ in range(6)]
        assert {job.result() for job in jobs} == {tmp_path / row.folder}
        assert len(site.asked) == 1
    assert held(tmp_path / row.folder) == inside


SCRIPT = """
import os, sys, time
from advibp.data.fetch import catalogue
from advibp.data.fetch.known_sets import File, Remote, Row

url, root, size, checksum, stop = sys.argv[1:]
row = Row(name="set", description="", images=(1, 1), classes=2, shape="", terms="", page="", base_url=url, folder="set",
          remotes=(Remote("a.tar.gz", int(size), checksum, r"(.*)", r"\\1", 1 << 20),))
if stop:  # hang at this function until the process is killed
    def hang(*_, **__):
        print("now", flush=True)
        time.sleep(600)
    setattr(catalogue, stop, hang)
print(catalogue.locate(row, root))
"""


@pytest.mark.parametrize("moment", ["extract", "_write_listing", "_replace_folder"])
def test_a_killed_process_leaves_no_incomplete_folder(tmp_path: Path, moment: str) -> None:
    body = tar_of({"train/a": b"a" * 1000, "test/b": b"b"})
    with serve({"/a.tar.gz": body}) as site:
        given = [sys.executable, "-c", SCRIPT, site.url, str(tmp_path), str(len(body)), sum_of(body)]
        with subprocess.Popen([*given, moment], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"now\n"
            child.send_signal(signal.SIGKILL)
        assert not (tmp_path / "set").exists()
        subprocess.run([*given, ""], check=True, capture_output=True)
        assert len(site.asked) == 1  # the download was kept
    assert {n for n in held(tmp_path / "set") if n != LISTING} == {"train/a", "test/b"}
    assert list((tmp_path / ".fetch").iterdir()) == []


def test_a_set_can_be_read_while_another_process_waits(tmp_path: Path) -> None:
    """A complete data set is located without a lock."""
    row, files, _ = stand_in("svhn")
    with serve(files) as site:
        fetch(row, tmp_path, mirror=site.url)
    lock = tmp_path / ".fetch" / f"{row.name}.lock"
    done = threading.Event()
    with catalogue.exclusive(lock, lambda: None):
        thread = threading.Thread(target=lambda: (locate(row, tmp_path), done.set()))
        thread.start()
        assert done.wait(100)
        thread.join()


def test_state_reads_no_contents(tmp_path: Path) -> None:
    """`state` compares sizes, `check` compares checksums."""
    row = find("svhn")
    folder_of(row, tmp_path).mkdir()
    for file in row.files:
        with (folder_of(row, tmp_path) / file.name).open("wb") as out:
            out.truncate(file.size)  # a sparse file
    assert state(row, tmp_path) == "complete"
    assert set(check(row, tmp_path).values()) == {"wrong checksum"}
