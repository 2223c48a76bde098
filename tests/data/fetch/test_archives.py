"""Archives are extracted safely or refused."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advibp.data.fetch.archives import extract
from advibp.errors import UserError

Contents = dict[str, bytes]
Write = Callable[[Path, Contents], None]


def write_tar(path: Path, contents: Contents, *, mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, body in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))


def write_plain_tar(path: Path, contents: Contents) -> None:
    write_tar(path, contents, mode="w")


def write_zip(path: Path, contents: Contents) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, body in contents.items():
            opened.writestr(name, body)


FORMATS = pytest.mark.parametrize("write", [write_tar, write_plain_tar, write_zip])


def held(folder: Path) -> Contents:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def take(archive: Path, **options: object) -> Path:
    into = archive.parent / "into"
    extract(archive, into, **{"members": lambda name: name, "max_bytes": 1 << 20, **options})  # type: ignore[arg-type]
    return into


def refused(archive: Path, match: str, *, partial: bool = False, **options: object) -> None:
    """``partial``: the folder may exist afterwards, as the caller removes it."""
    before = set(os.listdir(archive.parent))
    with pytest.raises(UserError, match=match) as error:
        take(archive, **options)
    assert "\n" not in str(error.value)
    assert set(os.listdir(archive.parent)) - before <= ({"into"} if partial else set())


@FORMATS
def test_round_trip(tmp_path: Path, write: Write) -> None:
    contents = {"a/b/c.txt": b"c" * 100_000, "a/d": b"", "e": b"e"}
    write(tmp_path / "archive", contents)
    assert held(take(tmp_path / "archive")) == contents


@FORMATS
def test_members_are_selected_and_renamed(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "archive", {"top/a": b"a", "top/b": b"b", "readme": b"r"})
    strip = lambda name: name.removeprefix("top/") if name.startswith("top/") else None  # noqa: E731
    assert held(take(tmp_path / "archive", members=strip)) == {"a": b"a", "b": b"b"}


@FORMATS
def test_an_archive_without_the_expected_members(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "archive", {"a": b"a"})
    refused(tmp_path / "archive", "none of the expected files", members=lambda name: None)


OUTSIDE = ["/etc/passwd", "../outside", "a/../../outside", "a/..", "..", "C:\\windows", "a\\..\\..\\b", "a\nb", "a:b"]


@FORMATS
@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_leave_the_folder_are_refused_even_if_they_are_not_extracted(
    tmp_path: Path, write: Write, name: str
) -> None:
    write(tmp_path / "archive", {"good": b"good", name: b"bad"})
    refused(tmp_path / "archive", "leaves the folder")
    refused(tmp_path / "archive", "leaves the folder", members={"good": "good"}.get)
    assert not (tmp_path.parent / "outside").exists()


@given(st.text(min_size=1, max_size=20), st.sampled_from([write_plain_tar, write_zip]))
def test_no_name_leads_outside_of_the_folder(tmp_path_factory: pytest.TempPathFactory, name: str, write: Write) -> None:
    folder = tmp_path_factory.mktemp("names")
    try:
        write(folder / "archive", {name: b"x"})
    except (UnicodeError, ValueError, IndexError):  # zipfile cuts a name at its first NUL, and trips over an empty one
        return
    before = set(os.listdir(folder))
    try:
        assert list(held(take(folder / "archive")).values()) in ([b"x"], [])
    except UserError:
        assert set(os.listdir(folder)) == before
    assert set(os.listdir(folder)) <= before | {"into"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "archive", "w:gz") as tar:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc"
        tar.addfile(info)
        inside = tarfile.TarInfo("link/passwd")
        tar.addfile(inside)
    refused(tmp_path / "archive", "'link', a (link|device)")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, kind: int) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as opened:
        info = zipfile.ZipInfo("link")
        info.external_attr = (kind | 0o777) << 16
        opened.writestr(info, "/etc")
    refused(tmp_path / "archive", "'link', a (link|device)")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "tar", "w") as tar:
        for name in ("a", "./a"):
            tar.addfile(tarfile.TarInfo(name))
    refused(tmp_path / "tar", "twice")
    with zipfile.ZipFile(tmp_path / "zip", "w") as opened:
        for body in (b"1", b"2"):
            opened.writestr("a", body)
    refused(tmp_path / "zip", "twice")


@FORMATS
def test_two_members_for_one_path_are_refused(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "archive", {"a": b"1", "b": b"2"})
    refused(tmp_path / "archive", "several members", members=lambda name: "same")
    write(tmp_path / "archive", {"a": b"1", "a/b": b"2"})
    refused(tmp_path / "archive", "several members")


@FORMATS
def test_bombs_are_refused(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "archive", {f"zeros{i}": b"\0" * 400_000 for i in range(3)})
    refused(tmp_path / "archive", "more than the 1,048,576 bytes")
    refused(tmp_path / "archive", "more than the 1,048,576 bytes", members={"zeros0": "zeros0"}.get)


def test_a_gzip_of_zeros_is_not_a_tar(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(gzip.compress(b"\0" * (200 << 20), compresslevel=1))
    with pytest.raises(UserError):
        take(tmp_path / "archive")
    assert os.listdir(tmp_path) == ["archive"]


def test_a_huge_tar_header_is_refused(tmp_path: Path) -> None:
    """The name of the next member, announced as 100 MB long: tarfile would read it into memory."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 100 << 20
    with gzip.open(tmp_path / "archive", "wb", compresslevel=1) as out:
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(100):
            out.write(b"a" * (1 << 20))
    refused(tmp_path / "archive", "more than")


def test_a_zip_with_wrong_sizes_is_refused(tmp_path: Path) -> None:
    write_zip(tmp_path / "archive", {"a": b"\0" * 1_000_000})
    raw = (tmp_path / "archive").read_bytes()
    lie = raw.replace((1_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    (tmp_path / "archive").write_bytes(lie)
    refused(tmp_path / "archive", "archive", partial=True, max_bytes=1000)


@FORMATS
def test_damaged_archives_are_refused(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "archive", {"a": os.urandom(50_000), "b": os.urandom(50_000)})
    raw = (tmp_path / "archive").read_bytes()
    for damaged in (raw[: len(raw) // 2], raw[:40_000], raw[:10], b"", b"PK", b"\x1f\x8b", os.urandom(2000)):
        (tmp_path / "archive").write_bytes(damaged)
        refused(tmp_path / "archive", "archive", partial=write is write_zip)


def test_folders_and_a_dot_are_accepted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_bytes(b"x")
    subprocess.run(["tar", "-czf", str(tmp_path / "archive"), "-C", str(source), "."], check=True)
    assert held(take(tmp_path / "archive")) == {"sub/file": b"x"}


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    write_zip(tmp_path / "archive", {"a": b"new"})
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "a").write_text("mine")
    refused(tmp_path / "archive", "File exists")
    assert held(tmp_path / "into") == {"a": b"mine"}


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    write_zip(tmp_path / "archive", {"a": b"secret"})
    raw = bytearray((tmp_path / "archive").read_bytes())
    raw[6] |= 1
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "archive").write_bytes(bytes(raw))
    refused(tmp_path / "archive", "encrypted")


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("may not mount a small disk here")
    try:
        write_tar(disk / "archive", {"a": b"\0" * 500_000})
        refused(disk / "archive", "No space left", partial=True)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
