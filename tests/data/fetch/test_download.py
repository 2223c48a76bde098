"""Downloads give the expected bytes or an error, whatever the server or the disk does."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web import Site, serve

from advibp.data.fetch.download import MAX_FAILURES, Unreachable, download, matches
from advibp.errors import UserError

Factory = pytest.TempPathFactory
BODY = os.urandom(1 << 20)


def sum_of(body: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"


def get(site: Site, target: Path, body: bytes = BODY, **options: object) -> None:
    settings = {"checksum": sum_of(body), "wait": 0.01, "timeout": 100.0, **options}
    download(f"{site.url}/file", target, size=len(body), **settings)  # type: ignore[arg-type]


def part_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "file.bin"


@pytest.mark.parametrize("algorithm", ["sha256", "sha1", "md5"])
def test_only_the_file_is_left(target: Path, algorithm: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    with serve({"/file": BODY}) as site:
        get(site, target, checksum=sum_of(BODY, algorithm), progress=lambda *a: seen.append(a))
    assert target.read_bytes() == BODY
    assert os.listdir(target.parent) == [target.name]
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1] == ("file.bin", len(BODY), len(BODY))


def test_an_existing_file_is_not_downloaded_again(target: Path) -> None:
    with serve({"/file": BODY}) as site:
        get(site, target)
        get(site, target)
        assert len(site.asked) == 1
        target.write_bytes(BODY[:-1])
        get(site, target)
        assert len(site.asked) == 2
    assert target.read_bytes() == BODY


@given(kept=st.integers(0, 1000), body=st.binary(min_size=1, max_size=1000))
def test_an_incomplete_download_is_resumed(tmp_path_factory: Factory, kept: int, body: bytes) -> None:
    """The part may also be empty, complete, or longer than the file."""
    target = tmp_path_factory.mktemp("resume") / "file"
    part_of(target).write_bytes((body + b"\0" * 1000)[:kept])
    with serve({"/file": body}) as site:
        get(site, target, body)
        assert target.read_bytes() == body
        if 0 < kept < len(body):
            assert site.asked == [("/file", f"bytes={kept}-")]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("say_length", [True, False])
def test_a_broken_connection_is_resumed(target: Path, ranges: bool, say_length: bool) -> None:
    with serve({"/file": BODY}, drop_after=300_000, drops=3, ranges=ranges, say_length=say_length) as site:
        get(site, target)
        assert len(site.asked) == 4
    assert target.read_bytes() == BODY


def test_any_number_of_breaks_is_accepted_as_long_as_bytes_arrive(target: Path) -> None:
    with serve({"/file": BODY}, drop_after=100_000) as site:
        get(site, target)
        assert len(site.asked) > MAX_FAILURES
    assert target.read_bytes() == BODY


def test_attempts_without_new_bytes_are_limited_and_the_part_is_kept(target: Path) -> None:
    with serve({"/file": BODY}, drop_after=1000, ranges=False) as site:
        with pytest.raises(Unreachable, match="stopped after 1,000 bytes"):
            get(site, target)
        assert len(site.asked) == MAX_FAILURES
        assert part_of(target).read_bytes() == BODY[:1000]
        site.drop_after = None
        get(site, target)
    assert target.read_bytes() == BODY


def test_wrong_bytes_are_deleted(target: Path) -> None:
    with serve({"/file": BODY[::-1]}) as site:
        with pytest.raises(UserError, match="wrong sha256 checksum"):
            get(site, target)
        assert os.listdir(target.parent) == []
        site.files["/file"] = BODY
        get(site, target)
    assert target.read_bytes() == BODY


def test_a_part_of_another_file_is_detected_and_deleted(target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(b"\0" * 1000)
    with serve({"/file": BODY}) as site:
        with pytest.raises(UserError, match="wrong sha256 checksum"):
            get(site, target)
        get(site, target)
    assert target.read_bytes() == BODY


def test_a_file_of_another_size_is_refused_before_it_is_read(target: Path) -> None:
    for body in (BODY + b"!", BODY[:-1]):
        with serve({"/file": body}) as site, pytest.raises(UserError, match="bytes long where 1,048,576 were expected"):
            get(site, target)
        assert part_of(target).stat().st_size == 0


def test_a_server_that_sends_more_than_expected_is_stopped(target: Path) -> None:
    flood = b"\0" * (50 << 20)
    with (
        serve({"/file": BODY}, extra=flood, say_length=False) as site,
        pytest.raises(UserError, match="more than the 1,048,576 bytes"),
    ):
        get(site, target)
    assert not target.exists()
    assert part_of(target).stat().st_size <= len(BODY)


def test_another_range_than_requested_is_discarded(target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(BODY[:1000])
    with serve({"/file": BODY}, shift=-500) as site:
        get(site, target)
    assert target.read_bytes() == BODY


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (403, 1), (503, MAX_FAILURES)])
def test_http_errors(target: Path, code: int, tries: int) -> None:
    with serve({}, fail_with=code) as site:
        with pytest.raises(Unreachable, match=str(code)):
            get(site, target)
        assert len(site.asked) == tries


def test_an_unreachable_server(target: Path) -> None:
    with serve({}) as site:
        pass
    with pytest.raises(Unreachable, match=r"Cannot reach .*refused"):
        get(site, target, wait=10_000)  # that is, without a second try
    with pytest.raises(Unreachable, match="Cannot reach"):
        download("http://no-such-host.invalid/file", target, size=1, checksum=sum_of(b""), wait=10_000)


def test_a_silent_server_times_out(target: Path) -> None:
    with serve({"/file": BODY}, pause=threading.Event()) as site:
        with pytest.raises(Unreachable, match="no answer in time"):
            get(site, target, timeout=1.0)  # (of several tries, each brings some)
        assert site.pause is not None
        site.pause.set()
    assert part_of(target).stat().st_size > 0


def test_redirects_are_followed_to_http_only(target: Path) -> None:
    with serve({"/file": BODY}) as there, serve({"/file": b""}, redirect=f"{there.url}/file") as here:
        get(here, target)
        assert target.read_bytes() == BODY
        target.unlink()
        for elsewhere in ("file:///etc/hostname", "ftp://127.0.0.1/file"):
            here.redirect = elsewhere
            with pytest.raises(Unreachable):
                get(here, target)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://example.org/x", "data:,x", "/etc/hostname", ""])
def test_other_schemes_are_refused(target: Path, url: str) -> None:
    with pytest.raises(UserError, match="http://"):
        download(url, target, size=1, checksum=sum_of(b""))
    assert not target.parent.exists()


@pytest.mark.parametrize("url", ["http://[", "http://", "http://a b/c", "http://" + "a" * 100 + ".org/", "http://x:y/"])
def test_malformed_addresses(target: Path, url: str) -> None:
    with pytest.raises(UserError, match="Cannot"):
        download(url, target, size=1, checksum=sum_of(b""))


SCRIPT = """
import sys
from pathlib import Path
from advibp.data.fetch.download import download
url, target, size, checksum = sys.argv[1:]
download(url, Path(target), size=int(size), checksum=checksum, timeout=100)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_loses_no_bytes(target: Path, sent: signal.Signals) -> None:
    with serve({"/file": BODY}, pause=threading.Event()) as site:
        given = [f"{site.url}/file", str(target), str(len(BODY)), sum_of(BODY)]
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, *given], stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 100
        while not part_of(target).exists() or part_of(target).stat().st_size < len(BODY) // 2:
            assert child.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.01)
        child.send_signal(sent)
        child.wait()
        assert site.pause is not None
        site.pause.set()
        assert not target.exists()
        assert part_of(target).read_bytes() == BODY[: len(BODY) // 2]
        get(site, target)
        assert site.asked[-1] == ("/file", f"bytes={len(BODY) // 2}-")
    assert target.read_bytes() == BODY


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("may not mount a small disk here")
    try:
        with serve({"/file": BODY}) as site:
            with pytest.raises(UserError, match=r"disk of .* is full"):
                get(site, disk / "file")
            kept = (disk / "file.part").read_bytes()
            assert kept
            assert BODY.startswith(kept)
            subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
            get(site, disk / "file")
            assert site.asked[-1][1] == f"bytes={len(kept)}-"
        assert (disk / "file").read_bytes() == BODY
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with serve({"/file": BODY}) as site, pytest.raises(UserError, match="Cannot write"):
        get(site, tmp_path / "file" / "target")


def test_checksums(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY)
    for algorithm in ("sha256", "sha1", "md5"):
        assert matches(tmp_path / "file", sum_of(BODY, algorithm))
        assert not matches(tmp_path / "file", sum_of(BODY[1:], algorithm))
