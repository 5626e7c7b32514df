"""A version made of another one: samples move to another class, or are left out."""

from pathlib import Path

import pytest
from support.files.pictures import imported, save_tree

from preflight.errors import InvalidConfig
from training.catalog.catalog import Catalog
from training.data.dataset_store import open_dataset, read_train_labels
from training.importing.difference import compare
from training.importing.issues import Issue, Issues
from training.importing.revision import revise
from worker.config.settings import Settings
from worker.jobs.local.importing import relabel_local


def test_samples_move_and_go(tmp_path: Path) -> None:
    """The version before stays; the new one says who made it, and its other samples keep their side."""
    first = imported(tmp_path, save_tree(tmp_path / "source", 12))
    catalog = Catalog(tmp_path)
    second = revise(catalog, "mine", {0: "ring", 1: None, first.samples - 1: None}, "ada")
    assert (second.reference, second.samples) == ("mine@2", first.samples - 2)
    found = compare(catalog, first, second)
    assert (found["added"], found["removed"], found["moved"]) == (0, 2, 0)
    assert found["relabelled"] == (first.classes[read_train_labels(catalog.store(first.sha256))[0]].name != "ring")
    assert second.report["revised"] == {
        "from": "mine@1", "by": "ada", "at": second.created_at, "moved": 1, "left_out": 2,
    }  # fmt: skip
    before, after = (open_dataset(catalog.info(version).path) for version in (first, second))
    assert after.train_images[0].equal(before.train_images[0])
    assert after.train_images[1].equal(before.train_images[2])
    assert after.test_images.equal(before.test_images[:-1])
    assert int(after.train_labels[0]) == [each.name for each in second.classes].index("ring")
    assert [*(tmp_path / "imported" / "work").glob("mine")] == []


def test_what_cannot_be_changed_is_refused(tmp_path: Path) -> None:
    """Also by the second of two who looked at the same version: nobody's change is lost."""
    version = imported(tmp_path, save_tree(tmp_path / "source", 4, ("a", "b")))
    catalog = Catalog(tmp_path)
    for changes, says in (
        ({}, "0 samples are to be changed"), ({version.samples: "a"}, "there is no sample"),
        ({-1: "a"}, "there is no sample"), ({0: "<b>"}, "'<b>' is no class"),
        (dict.fromkeys(range(version.samples), None), "would have no samples left"),
    ):  # fmt: skip
        with pytest.raises(InvalidConfig, match=says):
            revise(catalog, "mine@1", changes, "ada")
    revise(catalog, "mine@1", {0: None}, "ada")
    with pytest.raises(InvalidConfig, match="mine@1 is not the newest version any more; look at mine@2"):
        revise(catalog, "mine@1", {1: None}, "bob")
    assert [each.reference for each in catalog.versions()] == ["mine@1", "mine@2"]


def test_a_change_with_an_open_quote_is_refused(tmp_path: Path) -> None:
    """It would take the changes behind it into the name of its class."""
    with pytest.raises(InvalidConfig, match=r"line 2 \('1,\"ring'\) cannot be divided into columns .*; correct it"):
        relabel_local("mine@1", '0,ring\n1,"ring\n2,disc', Settings(data_dir=tmp_path), "ada")


def test_labels_that_look_wrong_stay_found_until_they_are_settled(tmp_path: Path) -> None:
    """A search takes minutes: the next version has those that nobody has settled, by their new numbers."""
    first = imported(tmp_path, save_tree(tmp_path / "source", 12))
    catalog = Catalog(tmp_path)
    names = [each.name for each in first.classes]
    labels = read_train_labels(catalog.store(first.sha256)).tolist()
    other = [names[(label + 1) % len(names)] for label in labels]
    issues = tuple(
        Issue(sample=sample, given=names[labels[sample]], suggested=other[sample], own=0.1, probability=0.8)
        for sample in (5, 1, 3, 0)
    )
    found = Issues(
        dataset="mine@1", samples=first.samples, estimated=3, accuracy=0.9, seconds=60.0, at="2026-11-29", issues=issues
    )
    catalog.issues(first.sha256).write_text(found.model_dump_json())
    second = revise(catalog, "mine", {1: other[1], 3: None}, "ada")
    left = Issues.model_validate_json(catalog.issues(second.sha256).read_bytes())
    assert [(each.sample, each.given) for each in left.issues] == [(4, issues[0].given), (0, issues[3].given)]
    assert (left.dataset, left.estimated, left.samples) == ("mine@1", 1, first.samples - 1)
    assert Issues.model_validate_json(catalog.issues(first.sha256).read_bytes()) == found
