"""Bad inputs, each a real small file: refused by one sentence with nothing left behind, or left out by name."""

import csv
import io
import json
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.files.pictures import drawn, imported, pixels, save_tree

from preflight.errors import DatasetError
from training.catalog.catalog import Catalog
from training.data.dataset_store import open_dataset
from training.importing.form import Options
from training.importing.sources.detect import read_source

Array = npt.NDArray[np.uint8]
IMAGES, LABELS = pixels(10)


def left_behind(data: Path) -> list[Path]:
    """Return the files of a data directory, locks apart."""
    return [path for path in data.rglob("*") if path.is_file() and path.suffix != ".lock"]


def jpeg(**options: object) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG", **options)
    return file.getvalue()


def animated(kind: str) -> bytes:
    file = io.BytesIO()
    frames = [drawn("disc", seed) for seed in range(3)]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


def png_bomb() -> bytes:
    """A PNG of 10,000 x 10,000 pixels in 100 KB."""
    file = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(file, "PNG")
    return file.getvalue()


REFUSED = {
    "text": (b"hello, this is a note\n", "is text, no picture"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "is HTML, no picture; download the picture itself"),
    "video": (b"\0\0\0\x18ftypmp42" + bytes(100), "is a video, no picture"),
    "heic": (b"\0\0\0\x18ftypheic" + bytes(100),
             "is HEIC, which needs a decoder that is not installed; save it as JPEG or PNG"),
    "empty": (b"", "is empty"),
    "truncated": (jpeg()[:900], "is damaged (image file is truncated"),
    "gif": (animated("GIF"), "is animated, 3 pictures in one; save one of them"),
    "apng": (animated("PNG"), "is animated, 3 pictures in one; save one of them"),
    "bomb": (png_bomb(), "has 10,000 x 10,000 pixels, but may have at most 50,000,000 in all"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is SVG or XML; save it as PNG"),
    "pickle": (pickle.dumps({"a": list(range(300))}), "is no PNG, JPEG, WebP, GIF, BMP, TIFF or PPM"),
}  # fmt: skip


def test_files_that_are_no_pictures_are_left_out_by_name(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "source", 10)
    for name, (content, _) in REFUSED.items():
        (source / "disc" / f"bad {name}.png").write_bytes(content)
    version = imported(tmp_path / "data", source, max_refused=0.5)
    assert version.samples == 40
    refused = version.report["refused"]
    assert isinstance(refused, dict)
    reasons = refused["reasons"]
    assert isinstance(reasons, list)
    found = {file: each["reason"] for each in reasons if isinstance(each, dict) and isinstance(each["files"], list)
             for file in each["files"]}  # fmt: skip
    assert refused["samples"] == len(REFUSED)
    for name, (_, reason) in REFUSED.items():
        assert str(found[f"disc/bad {name}.png"]).startswith(reason)


def test_too_many_of_them_end_the_import(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "source", 10)
    for number in range(3):
        (source / "disc" / f"{number}.png").write_bytes(b"no picture")
    with pytest.raises(DatasetError, match=r"3 of 40 samples are refused \(3: is text, no picture, disc/.*1\.00%"):
        imported(tmp_path / "data", source)
    assert left_behind(tmp_path / "data") == []


def file_of(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_unusual_pictures_are_read_as_they_look(tmp_path: Path) -> None:
    """16 bits, a palette with transparency, CMYK, EXIF's rotation, one bit, a gray JPEG."""
    source = save_tree(tmp_path / "source", 2, ("a", "b"))
    ramp = np.linspace(0, 65_535, 28 * 28).reshape(28, 28).astype(np.uint16)
    Image.fromarray(ramp).save(file_of(source / "16 bits" / "1.png"))
    palette = drawn("disc", 1).convert("P")
    palette.save(file_of(source / "palette" / "1.png"), transparency=0)
    Image.new("CMYK", (28, 28), (0, 0, 0, 255)).save(file_of(source / "cmyk" / "1.jpg"))
    turned = Image.new("L", (28, 28))
    turned.paste(255, (0, 0, 28, 5))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise: what is above is right
    turned.save(file_of(source / "exif" / "1.jpg"), exif=exif, quality=95)
    drawn("square", 3).convert("1").save(file_of(source / "one bit" / "1.png"))
    version = imported(tmp_path / "data", source, channels="gray", ink="light", test=0.0001, validation=0)
    info = Catalog(tmp_path / "data").info(version)
    store = open_dataset(info.path)
    names = [info.class_names[label] for label in store.train_labels.tolist()]
    by_name = {name: store.train_images[number, 0].numpy() for number, name in enumerate(names)}
    assert abs(by_name["16 bits"].astype(int) - ramp // 257).max() <= 1
    assert by_name["palette"][0, 0] == 255  # transparent is white
    assert by_name["cmyk"].max() < 10
    assert by_name["exif"][:, 24:].min() > 200
    assert by_name["exif"][:, :20].max() < 60
    assert {*np.unique(by_name["one bit"]).tolist()} == {0, 255}


def rows(path: Path, change: Callable[[list[list[object]]], None], *, header: bool = True) -> Path:
    table: list[list[object]] = [["label", *(f"pixel{number}" for number in range(784))]] if header else []
    order = np.random.default_rng(0).permutation(len(LABELS))
    table += [[int(LABELS[place]), *IMAGES[place].ravel().tolist()] for place in order]
    change(table)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: table[20].pop(), "has 784 columns instead of 785"),
        (lambda table: table[20].__setitem__(300, 256), "has a pixel beyond 0 to 255"),
        (lambda table: table[20].__setitem__(300, "x"), "has a pixel that is no number"),
        (lambda table: table[20].__setitem__(300, ""), "has a pixel that is no number"),
        (lambda table: table[20].__setitem__(0, ""), "has no label"),
        (lambda table: table[20].__setitem__(300, -1), "has a pixel beyond 0 to 255"),
    ],
)
def test_a_wrong_row_in_the_middle_is_left_out(
    tmp_path: Path, change: Callable[[list[list[object]]], None], reason: str
) -> None:
    version = imported(tmp_path / "data", rows(tmp_path / "train.csv", change), max_refused=0.05)
    assert version.samples == 39
    assert version.report["refused"] == {
        "samples": 1, "reasons": [{"reason": reason, "count": 1, "files": ["train.csv, row 20"]}],
    }  # fmt: skip


def test_the_first_of_too_many_wrong_rows_is_named_by_its_number(tmp_path: Path) -> None:
    def spoil(table: list[list[object]]) -> None:
        for row in table[20:22]:
            row.pop()

    with pytest.raises(DatasetError, match=r"2 of 40 samples are refused \(2: has 784 .*, train.csv, row 20 first\)"):
        imported(tmp_path / "data", rows(tmp_path / "train.csv", spoil))


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def append_one(table: list[list[object]]) -> None:
    for row in table:
        row.append(1)


def remove_first(table: list[list[object]]) -> None:
    for row in table:
        del row[0]


def npz(path: Path, **arrays: object) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.save(file, np.asarray(array))
    return path


def npy(root: Path, shape: bytes) -> Path:
    """Save arrays, one of which says that it has this shape, or is empty."""
    np.save(root / "labels.npy", LABELS)
    np.save(root / "images.npy", IMAGES)
    content = (root / "images.npy").read_bytes()
    (root / "images.npy").write_bytes(content.replace(b"(40, 28, 28)", shape) if shape else b"")
    return root


def damaged_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a/1.png", IMAGES.tobytes())
    content = bytearray(path.read_bytes())
    content[60] ^= 255
    path.write_bytes(content)
    return path


def idx(root: Path, images: Array, labels: Array) -> Path:
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (root / f"train-{kind}-ubyte").write_bytes(head + array.tobytes())
    return root


def header_of_pixels(path: Path) -> Path:
    def clear(table: list[list[object]]) -> None:
        del table[1:]

    return rows(path, clear)


def parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def cells(count: int = 40) -> list[dict[str, bytes]]:
    files = []
    for image in IMAGES[:count]:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        files.append({"bytes": file.getvalue()})
    return files


def zipped(path: Path, entries: dict[str, bytes], **info: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            for field, value in info.items():
                setattr(entry, field, value)
            archive.writestr(entry, content)
    return path


def tarred(path: Path, name: str, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        archive.addfile(entry, io.BytesIO())
    return path


def encrypted(path: Path) -> Path:
    """A zip file whose entry says that it is encrypted."""
    zipped(path, {"a/1.png": b"x" * 100})
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    return path


def many_entries(path: Path) -> Path:
    """A zip file that says it has a million entries, as ZIP64 does."""
    zipped(path, {"a/1.png": b"x"})
    data = path.read_bytes()
    end = data.rindex(b"PK\5\6")
    record = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 10**6, 10**6, 0, 0)
    locator = b"PK\6\7" + struct.pack("<IQI", 0, end, 1)
    closing = bytearray(data[end:])
    closing[8:12] = b"\xff\xff\xff\xff"
    path.write_bytes(data[:end] + record + locator + closing)
    return path


SOURCES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "two labels": (lambda root: rows(root / "a.csv", append_one), "has 786 columns, but needs a label"),
    "no label column": (lambda root: rows(root / "a.csv", remove_first), "has 784 columns and none named label"),
    "pickled objects": (
        lambda root: npz(root / "a.npz", images=np.array([{1: 2}] * 3, dtype=object), labels=np.arange(3)),
        "holds Python objects",
    ),
    "labels do not fit": (lambda root: npz(root / "a.npz", images=IMAGES, labels=LABELS[:7]), "one label for each"),
    "strange axes": (lambda root: npz(root / "a.npz", images=np.zeros((5, 6, 7, 8)), labels=LABELS[:5]), "the shape"),
    "texts": (lambda root: npz(root / "a.npz", images=np.full((5, 4, 4), "x"), labels=LABELS[:5]), "no numbers"),
    "not a number": (
        lambda root: npz(root / "a.npz", images=np.full((5, 4, 4), np.nan), labels=LABELS[:5]), "no numbers",
    ),
    "several classes of one picture": (
        lambda root: npz(root / "a.npz", images=IMAGES, labels=np.eye(4, dtype=int)[LABELS] | np.eye(4, dtype=int)[0]),
        "labels have 4 columns, of which not exactly one is 1",
    ),
    "shares of classes": (
        lambda root: npz(root / "a.npz", images=IMAGES, labels=np.full((40, 4), 0.25)), "of which not exactly one is 1",
    ),
    "tables of labels": (
        lambda root: npz(root / "a.npz", images=IMAGES, labels=np.zeros((40, 2, 2))), "save one number or text",
    ),
    "rows of texts": (
        lambda root: npz(root / "a.npz", images=IMAGES, labels=np.full((40, 2), "a")), "save one number or text",
    ),
    "a label is no number": (
        lambda root: npz(root / "a.npz", images=IMAGES, labels=LABELS + 0.5), "label, a.npz, images, row 0 first",
    ),
    "huge pictures": (
        lambda root: npz(root / "a.npz", images=np.zeros((1, 7_100, 7_100), np.uint8), labels=LABELS[:1]),
        "at most 50,000,000 values",
    ),
    "no samples": (lambda root: npz(root / "a.npz", images=IMAGES[:0], labels=LABELS[:0]), "a.npz, images has no samp"),
    "no samples of fractions": (
        lambda root: npz(root / "a.npz", images=np.zeros((0, 784)), labels=LABELS[:0]), "has no samples",
    ),
    "no samples in IDX": (lambda root: idx(root, IMAGES[:0], LABELS[:0]), "train-images-idx3-ubyte has no samples"),
    "no pixels": (lambda root: npz(root / "a.npz", images=IMAGES[:, :0], labels=LABELS), "with a side of 0"),
    "no columns of labels": (lambda root: npz(root / "a.npz", images=IMAGES, labels=IMAGES[:, 0, :0]), "a side of 0"),
    "no rows": (
        lambda root: parquet(root / "a.parquet", image=pa.array([], pa.binary()), label=pa.array([], pa.int64())),
        "has no rows",
    ),
    "a header of pixels": (lambda root: header_of_pixels(root / "a.csv"), "is nothing that is imported"),
    "other arrays": (lambda root: npz(root / "a.npz", weights=IMAGES), "has no pictures with labels"),
    "parquet without labels": (lambda root: parquet(root / "a.parquet", image=cells()), "has no column of labels"),
    "nested parquet": (
        lambda root: parquet(root / "a.parquet", item=[{"image": cell, "label": 1} for cell in cells(5)]),
        "has no column of encoded pictures",
    ),
    "paths in parquet": (
        lambda root: parquet(root / "a.parquet", image=[{"bytes": "a.png"}] * 40, label=LABELS.tolist()),
        "has no column of encoded pictures",
    ),
    "no parquet": (lambda root: written(root / "a.parquet", b"PAR1 not PAR1"), "cannot be read as Parquet"),
    "zip bomb": (
        lambda root: zipped(root / "a.zip", {f"a/{number}.png": bytes(30 << 20) for number in range(4)}),
        "unpacks to more than",
    ),
    "absolute path": (lambda root: zipped(root / "a.zip", {"/etc/a.png": b"x"}), "leads out of it"),
    "path out": (lambda root: zipped(root / "a.zip", {"a/../../b.png": b"x"}), "leads out of it"),
    "windows path": (lambda root: zipped(root / "a.zip", {"C:\\a\\b.png": b"x"}), "leads out of it"),
    "link in a zip": (
        lambda root: zipped(root / "a.zip", {"a/1.png": b"/etc"}, external_attr=0o120777 << 16), "such as a link",
    ),
    "encrypted": (lambda root: encrypted(root / "a.zip"), "is encrypted"),
    "a million entries": (lambda root: many_entries(root / "a.zip"), "has 1,000,000 entries, but may have at most"),
    "link in a tar": (lambda root: tarred(root / "a.tar.gz", "a/1.png", tarfile.SYMTYPE), "such as a link"),
    "device in a tar": (lambda root: tarred(root / "a.tar.gz", "a/1.png", tarfile.CHRTYPE), "such as a link"),
    "tar path out": (lambda root: tarred(root / "a.tar.gz", "../1.png"), "leads out of it"),
    "damaged zip": (lambda root: damaged_zip(root / "a.zip"), "no whole archive \\(Corrupt input data"),
    "no array": (lambda root: npy(root, b""), "images.npy is damaged \\(No data left in file"),
    "fewer than no samples": (lambda root: npy(root, b"(-1, 28, 28)"), "is damaged \\(memory mapped length"),
    "cut zip": (lambda root: written(root / "a.zip", b"PK\3\4" + bytes(50)), "no whole archive"),
    "not there": (lambda root: root / "missing", "is not there"),
    "a text": (lambda root: written(root / "a.txt", b"hello\nworld\n"), "nothing that is imported"),
    "an empty file": (lambda root: written(root / "a.csv", b""), "is empty"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_that_cannot_be_imported_leaves_nothing(tmp_path: Path, kind: str) -> None:
    make, sentence = SOURCES[kind]
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(DatasetError, match=sentence) as caught:
        imported(tmp_path / "data", make(source))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 600
    assert left_behind(tmp_path / "data") == []
    assert Catalog(tmp_path / "data").names() == []


def test_a_column_of_parquet_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    files = [cell["bytes"] for cell in cells()]
    source = parquet(tmp_path / "a.parquet", **{"the.image": files, "label": LABELS.tolist()})
    assert imported(tmp_path / "data", source).samples == 40


def test_signed_bytes_of_idx_are_numbers(tmp_path: Path) -> None:
    source = idx(tmp_path, IMAGES // 2, LABELS)
    with (source / "train-images-idx3-ubyte").open("r+b") as file:
        file.write(bytes((0, 0, 9)))
    assert imported(tmp_path / "data", source).samples == 40


def test_one_side_may_have_no_samples(tmp_path: Path) -> None:
    """As an array of a split that was made for other tools; the other sides are imported."""
    source = npz(tmp_path / "a.npz", x_train=IMAGES, y_train=LABELS, x_val=IMAGES[:0], y_val=LABELS[:0])
    assert imported(tmp_path / "data", source).samples == 40


def test_of_a_large_file_the_head_alone_is_read(tmp_path: Path) -> None:
    """The pictures stay on the disk until a child maps its part."""
    with (idx(tmp_path, IMAGES[:0], LABELS[:0]) / "train-images-idx3-ubyte").open("r+b") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, 1 << 20, 16, 16))
        file.truncate(16 + (256 << 20))
    with (tmp_path / "train-labels-idx1-ubyte").open("r+b") as file:
        file.write(struct.pack(">4BI", 0, 0, 8, 1, 1 << 20))
        file.truncate(8 + (1 << 20))
    tracemalloc.start()
    try:
        assert read_source(tmp_path, Options(), tmp_path, lambda: None).samples == 1 << 20
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (LABELS + 1, ["1", "2", "3", "4"]),
        (np.array(["a", "b", "c", "Hund ä"])[LABELS], ["Hund ä", "a", "b", "c"]),
        (LABELS.astype(np.float64), ["0", "1", "2", "3"]),
        (LABELS[:, None].repeat(8, 1), ["0", "1", "2", "3"]),
    ],
    ids=["one-based", "texts", "floats", "qmnist"],
)
def test_labels_of_any_form_become_class_names(tmp_path: Path, labels: object, names: list[str]) -> None:
    version = imported(tmp_path / "data", npz(tmp_path / "a.npz", images=IMAGES, labels=labels))
    assert [each.name for each in version.classes] == names


def test_class_names_are_those_of_one_form(tmp_path: Path) -> None:
    """Two that differ in white space or in Unicode's form alone are one class, in arrays as in Parquet's metadata."""
    names = ["a ", "a", "\u00e4", "a\u0308"]
    source = npz(tmp_path / "a.npz", images=IMAGES, labels=np.array(names)[LABELS])
    version = imported(tmp_path / "data", source)
    assert {each.name: each.train + each.validation + each.test for each in version.classes} == {"a": 20, "\u00e4": 20}
    features = {"label": {"_type": "ClassLabel", "names": names}}
    schema = pa.schema(
        [("image", pa.struct([("bytes", pa.binary())])), ("label", pa.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    pq.write_table(pa.table({"image": cells(), "label": LABELS.tolist()}, schema=schema), tmp_path / "a.parquet")
    assert imported(tmp_path / "data", tmp_path / "a.parquet").sha256 == version.sha256
    names[1] = ""
    source = npz(tmp_path / "b.npz", images=IMAGES, labels=np.array(names)[LABELS])
    with pytest.raises(DatasetError, match="a class is named '', which is no name"):
        imported(tmp_path / "data", source)


def test_a_thousand_classes_and_no_more(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2_002, 8, 8), dtype=np.uint8)
    labels = np.arange(2_002) // 2
    with pytest.raises(DatasetError, match="there are 1,001 classes, but at most 1,000 are imported"):
        imported(tmp_path / "data", npz(tmp_path / "a.npz", images=images, labels=labels))
    version = imported(tmp_path / "data", npz(tmp_path / "b.npz", images=images[:2_000], labels=labels[:2_000]))
    store = open_dataset(Catalog(tmp_path / "data").info(version).path)
    assert (len(version.classes), store.train_labels.dtype.itemsize) == (1_000, 2)
    assert {*store.test_labels.tolist()} == {*range(1_000)}  # each class has a test sample


def test_a_table_names_what_is_missing(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "source", 5)
    lines = [{"file": f"{path.relative_to(source)}", "label": path.parent.name} for path in source.rglob("*.png")]
    lines += [{"file": "gone.png", "label": "disc"}, {"file": "../../etc/passwd", "label": "disc"},
              {"file": "disc/0.png", "label": ""}]  # fmt: skip
    (source / "labels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    version = imported(tmp_path / "data", source, max_refused=0.5)
    assert version.samples == 20
    assert version.report["refused"] == {
        "samples": 3,
        "reasons": [
            {"reason": "is named in the table but is not in the folder", "count": 2,
             "files": ["gone.png", "../../etc/passwd"]},
            {"reason": "has no label", "count": 1, "files": ["labels.jsonl, line 23"]},
        ],
    }  # fmt: skip


def labelled(root: Path, table: str, text: Callable[[list[tuple[str, str]]], str]) -> Path:
    """Save 40 pictures, with a table of the text that `text` makes of their paths and classes."""
    save_tree(root, 10)
    paths = sorted(path.relative_to(root) for path in root.rglob("*.png"))
    (root / table).write_text(text([(str(path), path.parent.name) for path in paths]))
    return root


def lines(rows: list[tuple[str, str]], header: str = "file,label", end: str = "") -> str:
    return "\n".join([header, *(f"{file},{label}{end}" for file, label in rows)])


UNEVEN = "has another number of columns than the first row"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (lambda rows: lines([(rows[0][0], f"{rows[0][1]},more"), *rows[1:]]), UNEVEN),
        (lambda rows: lines(rows).replace(",cross", "", 1), UNEVEN),
        (lambda rows: "\n\n" + lines(rows), None),
        (lambda rows: lines([(f"1,{file}", label) for file, label in rows], ",file,label"), None),
    ],
    ids=["more cells", "fewer cells", "empty lines before it", "a column without a name, as pandas writes it"],
)
def test_a_table_of_labels_is_known_by_its_header(
    tmp_path: Path, text: Callable[[list[tuple[str, str]]], str], reason: str | None
) -> None:
    """A first row with more cells or fewer is left out, and a column without a name is not taken for another."""
    version = imported(tmp_path / "data", labelled(tmp_path / "source", "labels.csv", text), validation=0)
    assert version.kind == "pictures with labels.csv"
    assert version.samples == (40 if reason is None else 39)
    reasons = [] if reason is None else [{"reason": reason, "count": 1, "files": ["labels.csv, line 2"]}]
    assert version.report["refused"] == {"samples": len(reasons), "reasons": reasons}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (lambda rows: lines(rows, end=",more"), f"no row that can be used \\(40: {UNEVEN}, labels.csv, line 2 first"),
        (lambda rows: lines(rows[:0]), "labels.csv has no row that can be used; correct it"),
        (lambda rows: lines(rows, "file,label,Label", ",ring"), "labels.csv has several columns named label; rename"),
        (
            lambda rows: lines(rows).replace("cross/3", '"cross/3'),
            r"\(line 4\d: unexpected end of data; a quote may be",
        ),
        (lambda rows: lines(rows).replace("cross/3", '"' + "x" * 200_000), r"\(line \d: field larger than field limit"),
    ],
    ids=["each row is too long", "no rows", "two labels", "an open quote", "an open quote and a long cell"],
)
def test_a_table_that_cannot_be_read_right_is_refused(
    tmp_path: Path, text: Callable[[list[tuple[str, str]]], str], sentence: str
) -> None:
    """An open quote takes all lines behind it into one cell: the import ends, and does not go on without them."""
    with pytest.raises(DatasetError, match=sentence):
        imported(tmp_path / "data", labelled(tmp_path / "source", "labels.csv", text), max_refused=0.99)
    assert left_behind(tmp_path / "data") == []


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_of_labels_in_another_encoding_is_named(tmp_path: Path, encoding: str) -> None:
    """Without it all pictures of the folder would be of one class."""
    source = labelled(tmp_path / "source", "labels.csv", lines)
    (source / "labels.csv").write_bytes((source / "labels.csv").read_text().replace("ring", "rïng").encode(encoding))
    with pytest.raises(DatasetError, match=r"labels.csv cannot be read as a table .*; save it as UTF-8"):
        imported(tmp_path / "data", source)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_long_list_in_json_is_a_table(tmp_path: Path, indent: int | None) -> None:
    """It is known by its first entry with a label, whatever comes behind the bytes that are looked at."""

    def text(rows: list[tuple[str, str]]) -> str:
        entries = [{"image": file, "choice": label, "note": "x" * 3_000} for file, label in rows]
        del entries[0]["choice"]
        return json.dumps(entries, indent=indent)

    version = imported(tmp_path / "data", labelled(tmp_path / "source", "project-1.json", text))
    assert (version.kind, version.samples) == ("pictures with project-1.json", 39)


def test_an_open_quote_in_a_table_of_pixels_costs_one_row(tmp_path: Path) -> None:
    """And so does a cell that is too long, behind the lines in which the form of the table is looked for."""
    path = rows(tmp_path / "train.csv", lambda _: None)
    header, *body = path.read_text().splitlines()
    body *= 5
    body[20], body[-1] = f'"{body[20]}', "1" * 200_000
    path.write_text("\n".join([header, *body]))
    version = imported(tmp_path / "data", path, max_refused=0.05, keep_duplicates=True)
    assert version.samples == 198
    assert version.report["refused"] == {
        "samples": 2,
        "reasons": [
            {"reason": f"cannot be divided into columns ({why})", "count": 1, "files": [f"train.csv, row {row}"]}
            for why, row in (("unexpected end of data", 21), ("field larger than field limit (131072)", 200))
        ],
    }
