"""Every kind of source holds the same pictures: each import has the same content."""

import csv
import gzip
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.files.pictures import imported, pixels

from training.catalog.version import Version
from training.importing.form import Options

IMAGES, LABELS = pixels(20)
SHUFFLED = np.random.default_rng(0).permutation(len(LABELS))


def save_tree(root: Path) -> Path:
    """Write the pictures into folders named by their numbers."""
    for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        (root / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / str(label) / f"{number}.png")
    return root


def save_flat(root: Path) -> list[tuple[str, str]]:
    """Write the pictures into one folder; return the names and labels."""
    (root / "pictures").mkdir(parents=True)
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(root / "pictures" / f"{number}.png")
    return [(f"pictures/{number}.png", str(label)) for number, label in enumerate(LABELS)]


def labels_csv(root: Path) -> Path:
    with (root / "labels.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=";").writerows([("file", "label"), *save_flat(root)])
    return root


def json_lines(root: Path) -> Path:
    lines = [json.dumps({"image": name, "label": label}) for name, label in save_flat(root)]
    (root / "labels.jsonl").write_text("\n".join(lines))
    return root


def label_studio(root: Path) -> Path:
    """As JSON-MIN has it, with the names that Label Studio gives to uploads."""
    tasks = [
        {"id": number, "image": f"/data/upload/1/0a1b2c3d-{Path(name).name}", "choice": label, "annotator": 1}
        for number, (name, label) in enumerate(save_flat(root))
    ]
    (root / "project-1-at-2026-11-28.json").write_text(json.dumps(tasks))
    return root


def kaggle(
    root: Path, *, header: bool = True, packed: bool = False, scale: int = 1, delimiter: str = ",", bom: bool = False
) -> Path:
    rows = [[label, *(image.ravel() / scale if scale > 1 else image.ravel())] for image, label in
            zip(IMAGES[SHUFFLED], LABELS[SHUFFLED], strict=True)]  # fmt: skip
    names = [["label", *(f"pixel{number}" for number in range(784))]] if header else []
    text = "\ufeff" * bom + "".join(delimiter.join(map(str, row)) + "\r\n" for row in [*names, *rows])
    path = root / ("train.csv.gz" if packed else "train.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def keras(root: Path) -> Path:
    np.savez_compressed(root / "mine.npz", x_train=IMAGES, y_train=LABELS)
    return root / "mine.npz"


def floats(root: Path) -> Path:
    """Pixels 0 to 1 in Fortran order, labels as one-hot."""
    pictures = np.asfortranarray(IMAGES[..., None].astype(np.float32) / 255)
    np.savez(root / "mine.npz", images=pictures, labels=np.eye(4)[LABELS])
    return root / "mine.npz"


def medmnist(root: Path) -> Path:
    np.savez(root / "mine.npz", train_images=IMAGES, train_labels=LABELS[:, None])
    return root / "mine.npz"


def npy(root: Path) -> Path:
    np.save(root / "images.npy", IMAGES.reshape(len(IMAGES), 1, 28, 28))
    np.save(root / "labels.npy", LABELS.astype(str))
    return root


def idx(root: Path, *, packed: bool = False) -> Path:
    files = {
        "train-images-idx3-ubyte": struct.pack(">4B3I", 0, 0, 8, 3, *IMAGES.shape) + IMAGES.tobytes(),
        "train-labels-idx1-ubyte": struct.pack(">4BI", 0, 0, 8, 1, len(LABELS)) + LABELS.tobytes(),
    }
    (root / "MNIST" / "raw").mkdir(parents=True)
    for name, content in files.items():
        path = root / "MNIST" / "raw" / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return root


def parquet(root: Path, *, names: bool = True) -> Path:
    """As Hugging Face exports a data set, in two shards."""
    tree = save_tree(root / "tree")
    paths = sorted(tree.rglob("*.png"))
    cells = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["0", "1", "2", "3"]}}
    schema = pa.schema(
        [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})} if names else None,
    )
    labels = [int(path.parent.name) for path in paths]
    (root / "data").mkdir()
    for number, part in enumerate((slice(0, 33), slice(33, None))):
        table = pa.table({"image": cells[part], "label": labels[part]}, schema=schema)
        pq.write_table(table, root / "data" / f"all-0000{number}-of-00002.parquet", row_group_size=20)
    return root / "data"


def zipped(root: Path) -> Path:
    tree = save_tree(root / "tree")
    with zipfile.ZipFile(root / "mine.zip", "w") as archive:
        for path in sorted(tree.rglob("*.png")):
            archive.write(path, f"mine/{path.relative_to(tree)}")
        archive.writestr("__MACOSX/mine/0/._0.png", b"litter")
    return root / "mine.zip"


def tarred(root: Path) -> Path:
    tree = save_tree(root / "tree")
    with tarfile.open(root / "mine.tar.gz", "w:gz") as archive:
        archive.add(tree, "./mine")
    return root / "mine.tar.gz"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Version:
    root = tmp_path_factory.mktemp("expected")
    return imported(root / "data", save_tree(root / "tree"))


@pytest.mark.parametrize(
    "make",
    [
        labels_csv, json_lines, label_studio, kaggle, lambda root: kaggle(root, header=False),
        lambda root: kaggle(root, packed=True), lambda root: kaggle(root, scale=255),
        lambda root: kaggle(root, delimiter=";", bom=True), lambda root: kaggle(root, header=False, bom=True),
        keras, floats, medmnist, npy, idx,
        lambda root: idx(root, packed=True), parquet, lambda root: parquet(root, names=False), zipped, tarred,
    ],
    ids=[
        "labels.csv", "json lines", "label studio", "kaggle", "no header", "csv.gz", "floats in csv",
        "semicolons and a byte order mark", "a byte order mark and no header", "keras", "floats",
        "medmnist", "npy", "idx", "idx.gz", "parquet", "parquet without names", "zip", "tar.gz",
    ],
)  # fmt: skip
def test_each_source_has_the_same_content(tmp_path: Path, expected: Version, make: Callable[[Path], Path]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    given = imported(tmp_path / "data", make(source), test=0.2, validation=0.1)
    if given.report["read"] == 80 and given.kind in ("IDX files", "archive of arrays"):
        assert given.samples == 80
    assert [each.name for each in given.classes] == ["0", "1", "2", "3"]
    assert given.sha256 == expected.sha256


def test_what_is_asked_for_is_part_of_the_form(tmp_path: Path) -> None:
    tree = save_tree(tmp_path / "tree")
    version = imported(tmp_path / "data", tree, size=(20, 24), channels="rgb", ink="dark", test=0.5, validation=0.0)
    assert (version.shape, version.asked["inverted"]) == ((3, 20, 24), True)
    assert sum(each.validation for each in version.classes) == 0
    assert Options().test == 0.2


def test_one_group_stays_on_one_side(tmp_path: Path) -> None:
    """Twenty people wrote four digits each: nobody's digits are on both sides."""
    root = tmp_path / "source"
    root.mkdir()
    rows = [(name, label, f"writer {number % 20}") for number, (name, label) in enumerate(save_flat(root))]
    with (root / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "label", "writer"), *rows])
    version = imported(tmp_path / "data", root, group="writer", test=0.3)
    tests = sum(each.test for each in version.classes)
    assert {each.test + 0 for each in version.classes} == {tests // 4}
    assert 0 < tests < 80
    assert all(each.train + each.validation + each.test == 20 for each in version.classes)


def test_a_given_split_in_a_table_is_taken(tmp_path: Path) -> None:
    root = tmp_path / "source"
    root.mkdir()
    words = ("train", "val", "test", "train")
    rows = [(name, label, words[number % 4]) for number, (name, label) in enumerate(save_flat(root))]
    with (root / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "label", "split"), *rows])
    version = imported(tmp_path / "data", root)
    assert {(each.train, each.validation, each.test) for each in version.classes} == {(10, 5, 5)}
