"""Files of uploads: what is swept away, and when."""

import os
import time
from pathlib import Path
from uuid import uuid4

import pytest

from preflight.errors import DatasetError
from preflight.object_store import open_url
from worker.imports.uploads import (
    HALF_SECONDS,
    NEW_SECONDS,
    FolderUploads,
    StoredUploads,
    bytes_of,
    stored_name,
    sweep,
)

KEPT, ENDED = "0123456789abcdef", "fedcba9876543210"


def written(uploads: FolderUploads, name: str, age: float, folder: Path) -> None:
    upload = uploads.create(name)
    upload.write(b"abc")
    upload.commit()
    os.utime(folder / name, (time.time() - age,) * 2)


def test_what_nobody_needs_is_removed(tmp_path: Path) -> None:
    """Not what an import needs, what has just come, or what is none of ours."""
    uploads = FolderUploads(tmp_path)
    for name, age in (
        (f"{KEPT}.zip", 9e5), (f"{ENDED}.tar.gz", 2 * NEW_SECONDS), (ENDED, 0.0),
        (f"{ENDED}.zip.part", HALF_SECONDS / 2), (f"{KEPT}.zip.part", 2 * HALF_SECONDS), ("README.md", 9e5),
    ):  # fmt: skip
        written(uploads, name, age, tmp_path)
    assert bytes_of(uploads) == 18
    assert sweep(uploads, lambda import_id: import_id == KEPT) == 2
    assert {path.name for path in tmp_path.iterdir()} == {f"{KEPT}.zip", ENDED, f"{ENDED}.zip.part", "README.md"}


def test_an_upload_in_a_store_waits_for_its_import_as_one_in_a_folder_does() -> None:
    """The web service stores it before it opens the import; a worker that sweeps in between leaves it."""
    store, root = open_url(f"memory://{uuid4().hex}", "PREFLIGHT_DATASET_URL")
    uploads = StoredUploads(store, root)
    upload = uploads.create(f"{16 * 'a'}.zip")
    upload.write(b"x")
    upload.commit()
    assert sweep(uploads, lambda _: False) == 0
    ((_, size, age),) = uploads.listed()
    assert size == 1
    assert age is not None
    assert 0 <= age < 30


def test_an_upload_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    uploads = FolderUploads(tmp_path / "new")
    upload = uploads.create(KEPT)
    upload.write(b"abc")
    assert not uploads.has(KEPT)
    upload.abort()
    assert [*(tmp_path / "new").iterdir()] == []
    with pytest.raises(DatasetError, match="is gone; upload it again"):
        uploads.fetch(KEPT, tmp_path, lambda: None)
    (tmp_path / "new" / KEPT).symlink_to("/etc/passwd")
    with pytest.raises(DatasetError, match="is gone"):
        uploads.fetch(KEPT, tmp_path, lambda: None)


@pytest.mark.parametrize(
    ("file", "end"),
    [("a.zip", ".zip"), ("A B.TAR.GZ", ".tar.gz"), ("x.csv.gz", ".csv.gz"), ("../../etc/passwd", ""), ("a.exe", "")],
)
def test_of_the_name_of_a_file_only_a_known_end_counts(file: str, end: str) -> None:
    assert stored_name(KEPT, file) == KEPT + end
