"""Files that are whole or not there, written past the page cache or by it."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from preflight.files.atomic_files import BLOCK, SECTOR, staged, write_atomically


@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (1,), (SECTOR,), (BLOCK,), (BLOCK + 5,), (7, SECTOR - 7, BLOCK, 0, 3 * BLOCK + 1)],
    ids=lambda sizes: "+".join(str(size) for size in sizes) or "nothing",
)
def test_what_goes_past_the_page_cache_arrives_byte_for_byte(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Whatever the sizes of the chunks, though only whole sectors can be written."""
    chunks = [os.urandom(size) for size in sizes]
    with staged(tmp_path / "file", map(memoryview, chunks), uncached=True) as commit:
        commit()
    assert (tmp_path / "file").read_bytes() == b"".join(chunks)


def test_a_disk_that_wants_another_alignment_is_written_by_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refused block and all after it; there is no such disk here, so that the refusal is played."""
    write, direct = os.write, []

    def refusing(descriptor: int, data: memoryview) -> int:
        direct.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        if direct[-1] and len(direct) > 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refusing)
    content = os.urandom(3 * BLOCK + 5)
    with staged(tmp_path / "file", [content], uncached=True) as commit:
        commit()
    assert (tmp_path / "file").read_bytes() == content
    assert direct == [True, True, False, False, False]


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes through as it is, and what was there before stays."""

    def failing(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, f"No space left on device {descriptor} for {len(data)} bytes")

    path = tmp_path / "file"
    path.write_bytes(b"before")
    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(OSError, match="No space left"), staged(path, [b"x" * BLOCK], uncached=True) as commit:
        commit()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("refused", ["fchmod", "fsync of a directory", "fsync"])
def test_a_volume_without_modes_or_syncing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """As vfat, SMB, gcsfuse and NFS with root squash refuse it; none can be mounted here, so that it is played."""
    sync = os.fsync

    def no_mode(descriptor: int, mode: int) -> None:  # noqa: ARG001 - the signature of os.fchmod
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def no_sync(descriptor: int) -> None:
        if refused == "fsync" or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, *(("fchmod", no_mode) if refused == "fchmod" else ("fsync", no_sync)))
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_fails_is_no_volume_without_syncing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not written may not pass as written."""

    def broken(descriptor: int) -> None:  # noqa: ARG001 - the signature of os.fsync
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []
