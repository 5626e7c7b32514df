"""Archives: zip and tar files, unpacked with bounds on entries, bytes and paths.

No link is made, and nothing encrypted is read.
"""

from __future__ import annotations

import lzma
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final

from training.importing.sources.base import refuse
from training.importing.sources.files import made_of, most_bytes, start_of
from training.importing.sources.trees import is_hidden

MAX_ENTRIES: Final = 500_000
END: Final = b"PK\5\6"
"""Signature of the end of a zip file's central directory (PKWARE's APPNOTE, 4.3.16)."""
END_BYTES: Final = 22 + 65_535
RECORD_BYTES: Final = 56
"""Bytes of the record of ZIP64 before the locator (4.3.14)."""
BLOCK: Final = 1 << 18
ENCRYPTED: Final = 1
"""Bit for encryption in an entry's flags."""
UTF_8: Final = 0x800

Entry = tuple[str, Callable[[], IO[bytes] | None]]


def is_zip(path: Path) -> bool:
    """Whether a file begins like a zip file."""
    return start_of(path, 4) in (b"PK\3\4", END)


def is_npz(path: Path) -> bool:
    """Whether a zip file holds arrays of NumPy's and nothing else."""
    try:
        _check_entries(path)
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False
    return bool(names) and all(name.endswith(".npy") and "/" not in name for name in names)


def is_tar(path: Path) -> bool:
    """Whether a file is a tar file, packed or not."""
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error):
        return False


def unpack(path: Path, work: Path, check: Callable[[], None]) -> Path:
    """Return the folder below `work` with the content of an archive.

    Raises:
        DatasetError: it is damaged, encrypted, too large, or has paths that lead out of it.
    """
    folder = work / "archive"
    with made_of(path, folder) as is_made:
        if not is_made:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _unpack(path, folder, check)
    return folder


def _unpack(path: Path, folder: Path, check: Callable[[], None]) -> None:
    bound, total, count = most_bytes(path.stat().st_size), 0, 0
    try:
        for name, opened in _zip_entries(path) if is_zip(path) else _tar_entries(path):
            count += 1
            if count > MAX_ENTRIES:
                raise refuse(f"{path.name} has more than {MAX_ENTRIES:,} entries; unpack it yourself, if that is meant")
            target = _target(folder, name, path.name)
            file = opened() if target is not None else None
            if target is None or file is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with file, target.open("xb") as out:
                while block := file.read(BLOCK):
                    total += len(block)
                    if total > bound:
                        raise refuse(
                            f"{path.name} has {path.stat().st_size:,} bytes and unpacks to more than {bound >> 20:,} "
                            "MiB; unpack it yourself, if that is meant"
                        )
                    out.write(block)
            check()
    except FileExistsError as error:
        raise refuse(f"{path.name} has an entry twice ({Path(str(error.filename)).name})") from error
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, NotImplementedError,
        NotADirectoryError,
    ) as error:  # fmt: skip
        raise refuse(f"{path.name} is no whole archive ({str(error)[:200]})") from error


def _zip_entries(path: Path) -> Iterator[Entry]:
    _check_entries(path)
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if info.flag_bits & ENCRYPTED:
                raise refuse(f"{path.name} is encrypted; unpack it with its password first")
            kind = info.external_attr >> 16 & 0o170000
            if kind not in (0, 0o100000):  # a link, or a device
                raise refuse(f"{path.name} has an entry that is no file ({info.filename[:200]}), such as a link")
            yield _name(info), partial(archive.open, info)


def _name(info: zipfile.ZipInfo) -> str:
    """Return the name of an entry: those without the flag of UTF-8 often are UTF-8 all the same."""
    if info.flag_bits & UTF_8:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def _tar_entries(path: Path) -> Iterator[Entry]:
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if member.isdir():
                continue
            if not member.isfile():
                raise refuse(f"{path.name} has an entry that is no file ({member.name[:200]}), such as a link")
            yield member.name, partial(archive.extractfile, member)


def _target(folder: Path, name: str, archive: str) -> Path | None:
    """Return the path to unpack an entry to, None for a hidden one; raises `DatasetError` for a path that leads out."""
    entry = PurePosixPath(name.replace("\\", "/"))
    parts = [part for part in entry.parts if part != "."]
    if entry.is_absolute() or ".." in parts or "\0" in name or (parts and parts[0].endswith(":")):
        raise refuse(f"{archive} has an entry whose path leads out of it ({ascii(name)[:200]}); pack it again")
    if not parts or any(is_hidden(part) for part in parts):
        return None
    return folder.joinpath(*parts)


def _check_entries(path: Path) -> None:
    """Raise `DatasetError` for a zip file with too many entries, before its directory is read."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - END_BYTES))
        end = file.read()
    at = end.rfind(END)
    if at < 0 or len(end) < at + 12:
        return  # zipfile says what is wrong
    (count,) = struct.unpack_from("<H", end, at + 10)
    locator = end.rfind(b"PK\6\7", 0, at)
    if count == 0xFFFF and locator >= RECORD_BYTES:
        record = end[locator - RECORD_BYTES : locator]  # where zipfile looks, whatever offset the locator has
        if record[:4] == b"PK\6\6":
            (count,) = struct.unpack_from("<Q", record, 32)
    if count > MAX_ENTRIES:
        raise refuse(
            f"{path.name} has {count:,} entries, but may have at most {MAX_ENTRIES:,}; unpack it yourself, if that is "
            "meant"
        )
