"""The shelf of imported data, on a disk that others change, and beside an object store."""

from pathlib import Path

from support.files.pictures import imported, save_tree

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
