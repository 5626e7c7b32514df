"""Sources at URLs: only those below a prefix that the operator allows."""

import shutil
from pathlib import Path

import pytest
from support.files.pictures import save_tree

from preflight.errors import DatasetError
from training.importing.form import Options
from training.importing.sources.detect import read_source
from training.importing.sources.remote import fetch


def nothing() -> None:
    pass


def test_a_folder_and_an_archive_below_an_allowed_prefix(tmp_path: Path) -> None:
    tree = save_tree(tmp_path / "allowed" / "photos", 5)
    archive = shutil.make_archive(str(tmp_path / "allowed" / "packed"), "zip", tree)
    allowed = [(tmp_path / "allowed").as_uri()]
    for number, source in enumerate((tree, Path(archive))):
        (work := tmp_path / f"work{number}").mkdir()
        local = fetch(source.as_uri(), allowed, work, nothing)
        assert read_source(local, Options(), work, nothing).samples == 20
        assert fetch(source.as_uri(), allowed, work, nothing) == local  # after a kill nothing is fetched again


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://other/photos", "is not below an allowed prefix"),
        ("s3://bucket/photos-private/a.zip", "is not below an allowed prefix"),
        ("s3://bucket/photos/../secret", "is no plain URL"),
        ("s3://bucket/photos/%2e%2e/secret", "is no plain URL"),
        ("https://me:hunter2@host/photos/a.zip", "is no plain URL"),
        ("zip://a.png::s3://bucket/photos/a.zip", "is a zip URL; use s3, gs or https"),
        ("file:///etc/passwd", "is not below an allowed prefix"),
        ("ftp://host/a.zip", "is a ftp URL; use s3, gs or https"),
    ],
)
def test_other_urls_are_refused(tmp_path: Path, url: str, sentence: str) -> None:
    with pytest.raises(DatasetError, match=sentence) as caught:
        fetch(url, ["s3://bucket/photos", "https://host/photos/"], tmp_path, nothing)
    assert "hunter2" not in caught.value.message
    assert [*tmp_path.iterdir()] == []


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is not there"):
        fetch((tmp_path / "gone.zip").as_uri(), [tmp_path.as_uri()], tmp_path, nothing)
