"""Folders of class folders become a store that holds their pixels, by class name and side."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.files.pictures import SHAPES, drawn, imported, run, save_tree

from preflight.errors import DatasetError
from training.catalog.catalog import Catalog
from training.data.dataset_store import open_dataset
from training.importing.form import Options
from training.importing.sources.detect import read_source


def sides(data: Path, reference: str) -> dict[bytes, str]:
    """Return each picture's bytes and on which side it lies."""
    catalog = Catalog(data)
    info = catalog.info(catalog.find(reference))
    store = open_dataset(info.path)
    train = store.train_images.numpy()
    first_validation = len(train) - (info.validation_count or 0)
    found = {image.tobytes(): "train" if number < first_validation else "validation"
             for number, image in enumerate(train)}  # fmt: skip
    return found | {image.tobytes(): "test" for image in store.test_images.numpy()}


def test_pixels_and_labels_are_those_of_the_files(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "source")
    version = imported(tmp_path / "data", source)
    assert [each.name for each in version.classes] == sorted(SHAPES)
    assert (version.reference, version.shape, version.samples) == ("mine@1", (1, 28, 28), 120)
    store = open_dataset(Catalog(tmp_path / "data").info(version).path)
    expected = {
        (sorted(SHAPES).index(path.parent.name), np.asarray(Image.open(path)).tobytes())
        for path in source.rglob("*.png")
    }  # fmt: skip
    images = [*store.train_images.numpy(), *store.test_images.numpy()]
    labels = [*store.train_labels.tolist(), *store.test_labels.tolist()]
    assert {(label, image.tobytes()) for label, image in zip(labels, images, strict=True)} == expected
    assert store.info.class_names == tuple(sorted(SHAPES))
    assert store.info.mean == pytest.approx(float(store.train_images.float().mean()), rel=1e-5)
    assert store.info.std == pytest.approx(float(store.train_images.float().std(correction=0)), rel=1e-5)


def test_few_pictures_are_several_tasks(tmp_path: Path) -> None:
    """Photographs are few and take long: each processor decodes some, and the progress has steps."""
    source = read_source(save_tree(tmp_path / "source", 25), Options(), tmp_path, lambda: None)
    assert [shard.count for shard in source.shards] == [20] * 5


def test_given_splits_are_taken_as_they_are(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save_tree(source / "Train", 12)
    save_tree(source / "val", 5, first=100)
    save_tree(source / "TEST", 7, first=200)
    version = imported(tmp_path / "data", source)
    assert {(each.train, each.validation, each.test) for each in version.classes} == {(12, 5, 7)}


def test_pictures_of_one_colour_stay_in_training(tmp_path: Path) -> None:
    """A class of blank pictures is equal in training and test; they are reported as constant, not as duplicates."""
    source = tmp_path / "source"
    for side, count in (("train", 6), ("test", 3)):
        save_tree(source / side, count, ("disc", "ring"), first=count)
        (source / side / "blank").mkdir()
        for number in range(count):
            Image.new("L", (28, 28)).save(source / side / "blank" / f"{number}.png")
    shutil.copy(source / "train" / "disc" / "6.png", source / "test" / "disc" / "equal.png")
    version = imported(tmp_path / "data", source, validation=0)
    assert {each.name: (each.train, each.test) for each in version.classes} == {
        "blank": (6, 3), "disc": (5, 4), "ring": (6, 3),
    }  # fmt: skip
    duplicates, constant = version.report["exact_duplicates"], version.report["constant"]
    assert isinstance(duplicates, dict)
    assert isinstance(constant, dict)
    assert (duplicates["samples"], duplicates["across"], constant["samples"]) == (1, 1, 9)
    assert version.report["left_out_of_training"] == 1


def test_what_nobody_means_is_left_out(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "photos" / "wrapped" / "once", 10)
    (source / "disc" / "deep" / "er").mkdir(parents=True)
    drawn("disc", 999).save(source / "disc" / "deep" / "er" / "A.PNG")
    for litter in (".DS_Store", "Thumbs.db", "disc/._0.png", "disc/notes.txt"):
        (source / litter).write_bytes(b"litter")
    save_tree(tmp_path / "photos" / "__MACOSX", 2)
    version = imported(tmp_path / "data", tmp_path / "photos")
    assert version.samples == 41
    assert version.report["ignored_files"] == 1


def test_no_sample_changes_sides_when_others_come(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "source", 40)
    imported(tmp_path / "data", source)
    save_tree(source, 25, first=40)
    version = imported(tmp_path / "data", source)
    before, after = sides(tmp_path / "data", "mine@1"), sides(tmp_path / "data", "mine")
    assert version.reference == "mine@2"
    assert set(before) < set(after)
    assert all(after[picture] == side for picture, side in before.items())
    assert {*after.values()} == {"train", "validation", "test"}


def test_the_same_content_makes_no_second_version(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "source", 10)
    first, _ = run(tmp_path / "data", source)
    assert run(tmp_path / "data", source) == (first, False)
    shutil.move(source, tmp_path / "elsewhere")
    assert run(tmp_path / "data", tmp_path / "elsewhere")[1] is False
    assert run(tmp_path / "data", tmp_path / "elsewhere", size=(14, 14))[0].reference == "mine@2"


def test_other_sizes_are_letterboxed_and_dark_ink_is_inverted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name, colour in (("a", 0), ("b", 40)):
        (source / name).mkdir(parents=True)
        for seed in range(10):
            page = Image.new("L", (200, 100), 250)
            page.paste(colour, (20 + seed, 30, 120, 60 + seed))
            page.save(source / name / f"{seed}.jpg")
    version = imported(tmp_path / "data", source)
    assert (version.shape, version.asked["inverted"]) == ((1, 64, 64), True)
    image = open_dataset(Catalog(tmp_path / "data").info(version).path).train_images[0, 0]
    assert int(image[:15].max()) == 0  # above the picture, half as high as wide
    assert int(image[17:20].max()) < 20  # the paper
    assert int(image[32, 20:30].min()) > 200  # the ink


def test_links_are_not_followed(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "source", 100)
    save_tree(tmp_path / "secret", 3)
    (source / "disc" / "linked.png").symlink_to(tmp_path / "secret" / "disc" / "0.png")
    (source / "ring" / "folder").symlink_to(tmp_path / "secret" / "ring")
    version = imported(tmp_path / "data", source)
    assert version.samples == 400
    assert version.report["refused"] == {
        "samples": 2,
        "reasons": [{
            "reason": "is a symbolic link, which is not followed", "count": 2,
            "files": ["disc/linked.png", "ring/folder"],
        }],
    }  # fmt: skip


def name_a_class(root: Path, name: str) -> None:
    """Write a table beside pictures in which one has a class of this name."""
    files = [str(path.relative_to(root)) for path in sorted(save_tree(root, 3).rglob("*.png"))]
    rows = [f"{file},{name if number == 5 else file[:3]}" for number, file in enumerate(files)]
    (root / "labels.csv").write_text("\n".join(["file,label", *rows]))


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda root: root.mkdir(), "is empty"),
        (lambda root: save_tree(root, 3, ("one",)), "all samples are of one class, 'one'"),
        (lambda root: save_tree(root, 3, ("Cat", "cat")), "the classes 'Cat' and 'cat' differ in case alone"),
        (lambda root: save_tree(root, 3, ("a", "b" * 200)), "a class name has 200 characters"),
        (lambda root: name_a_class(root, "b" * 300), "a class name has 300 characters"),
        (lambda root: name_a_class(root, ".."), "a class is named '..', which is no name; rename it"),
        (lambda root: drawn("disc", 0).save(save_tree(root, 3) / "loose.png"), "pictures beside its class folders"),
    ],
)
def test_a_folder_that_cannot_be_imported_leaves_nothing(tmp_path: Path, prepare: object, sentence: str) -> None:
    assert callable(prepare)
    prepare(tmp_path / "source")
    with pytest.raises(DatasetError, match=sentence):
        imported(tmp_path / "data", tmp_path / "source")
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert Catalog(tmp_path / "data").names() == []


def test_class_names_are_kept(tmp_path: Path) -> None:
    names = ("Hund ä", "x y", "中文", os.fsdecode("e\u0301".encode()))
    version = imported(tmp_path / "data", save_tree(tmp_path / "source", 6, names))
    assert [each.name for each in version.classes] == sorted(["Hund ä", "x y", "中文", "é"])
