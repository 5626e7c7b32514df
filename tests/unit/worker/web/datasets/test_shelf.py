"""The shelf of imported data, on a disk that others change, and beside an object store."""

import json
from pathlib import Path

import pytest
from support.files.pictures import imported, save_tree

from preflight.errors import DatasetError
from training.catalog.catalog import Catalog
from training.catalog.shared import SharedCatalog
from worker.config.settings import Settings
from worker.web.datasets.shelf import Shelf


def test_a_store_that_is_removed_while_it_is_counted_does_not_count(tmp_path: Path) -> None:
    """A link to nothing is listed, and gone when it is looked at."""
    version = imported(tmp_path, save_tree(tmp_path / "photos", 4), "photos")
    shelf = Shelf(Settings(data_dir=tmp_path))
    before = shelf.bytes()
    assert before >= shelf.catalog.store(version.sha256).stat().st_size
    (shelf.catalog.stores / "gone.safetensors").symlink_to(tmp_path / "gone")
    assert shelf.bytes() == before


@pytest.mark.parametrize(("samples", "is_small"), [(10, True), (1_400_000, False)])
def test_samples_are_promised_where_they_are_shown(tmp_path: Path, samples: int, is_small: bool) -> None:
    """Not those of a store that only the object store has, and that is too large to be fetched: 1.02 GiB."""
    bucket = tmp_path / "bucket"
    version = imported(tmp_path / "worker", save_tree(tmp_path / "photos", 4), "photos")
    SharedCatalog(bucket.as_uri(), Catalog(tmp_path / "worker")).push(version)
    manifest = bucket / "names" / "photos" / "1.json"
    said = json.loads(manifest.read_text())
    said["classes"][0]["train"] = samples
    manifest.write_text(json.dumps(said))
    shelf = Shelf(Settings(data_dir=tmp_path / "web", dataset_url=bucket.as_uri()))
    assert shelf.detail("photos").has_samples is is_small
    if is_small:
        assert shelf.store("photos").exists()
    else:
        with pytest.raises(DatasetError, match="the pictures of photos@1 are"):
            shelf.store("photos")


def test_an_older_version_is_not_the_newest_one(tmp_path: Path) -> None:
    """What is asked for by its number is the chosen version, whose classes are counted."""
    for classes in (("a", "b", "c"), ("a", "b")):
        imported(tmp_path, save_tree(tmp_path / str(len(classes)), 4, classes), "photos")
    shelf = Shelf(Settings(data_dir=tmp_path))
    for reference, chosen, count in (("photos@1", "photos@1", 3), ("photos", "photos@2", 2)):
        found = shelf.detail(reference)
        assert (found.newest.dataset, found.chosen.dataset, found.versions) == ("photos@2", chosen, 2)
        assert (found.chosen.classes, len(found.classes)) == (count, count)
