"""Labels that look wrong: found by quick trainings on real pictures, mended as the next version."""

import json
from pathlib import Path

import pytest
from support.files.pictures import SHAPES, imported, save_tree
from support.worker.command_line import run

from training.catalog.catalog import Catalog
from training.importing.difference import read_rows
from training.loop.issues_child import course_of

MOVED = 8


def test_a_batch_has_as_many_pixels_whatever_the_size_of_a_picture() -> None:
    """A worker gives a search 1 GiB of memory."""
    batches = {side: course_of(10_000, (3, side, side))[0] for side in (28, 64, 128)}
    assert batches == {28: 128, 64: 32, 128: 8}


@pytest.mark.slow
def test_wrong_labels_are_found_and_mended(
    command_environment: None, tmp_path: Path  # noqa: ARG001 - settings
) -> None:  # fmt: skip
    """Most of the pictures in a wrong folder are among the first of the list, which `relabel` takes as it is."""
    source, data = save_tree(tmp_path / "photos", 70), tmp_path / "data"
    right = imported(tmp_path / "right", source, "photos")
    contents = {bytes(row["content"]): int(row["label"]) for row in read_rows(Catalog(tmp_path / "right"), right)}
    for number in range(MOVED):
        wrong = SHAPES[(number + 1) % len(SHAPES)]
        (source / SHAPES[number % len(SHAPES)] / f"{number}.png").rename(source / wrong / f"moved {number}.png")
    version = imported(data, source, "photos")
    names = [each.name for each in version.classes]
    rows = read_rows(Catalog(data), version)
    flipped = {place for place, row in enumerate(rows) if contents[bytes(row["content"])] != int(row["label"])}
    assert MOVED - 2 <= len(flipped) <= MOVED
    found = run("data", "issues", "photos", "--most", str(3 * MOVED), "--json")
    assert found.exit_code == 0, found.stderr
    assert "takes some " in found.stderr
    said = json.loads(found.stdout)
    listed = [each["sample"] for each in said["issues"]]
    assert (said["samples"], len(listed), said["dataset"]) == (version.samples, 3 * MOVED, "photos@1")
    assert len(flipped & {*listed}) >= len(flipped) - 2
    mended = [f"{each},{names[contents[bytes(rows[each]['content'])]]}" for each in sorted(flipped)]
    (tmp_path / "changes.csv").write_text("\n".join(mended))
    assert run("data", "relabel", "photos@1", str(tmp_path / "changes.csv")).exit_code == 0
    after = read_rows(Catalog(data), Catalog(data).find("photos@2"))
    assert all(contents[bytes(row["content"])] == int(row["label"]) for row in after)
