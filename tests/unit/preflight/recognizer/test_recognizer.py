"""A model in a Python program: by ONNX Runtime, without Redis and torch."""

import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image, ImageDraw
from support.files.named_models import CLASSES, make_model, network

from preflight import Recognizer
from preflight.errors import InvalidConfig, MissingPackage
from preflight.pictures.reading import MOST_PIXELS, Picture
from preflight.recognizer import recognizer
from preflight.recognizer.model import Model
from preflight.recognizer.onnx import ONNX
from preflight.recognizer.recognizer import Recognition


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = Image.new("L", (60, 60), "white")
    ImageDraw.Draw(image).line((30, 10, 25, 50), fill="black", width=6)
    image.save(tmp_path / "one.png")
    return tmp_path / "one.png"


def test_pictures_are_recognized(tmp_path: Path, picture: Path) -> None:
    """By path or by content, one or many; a directory and the file in it are the same model."""
    make_model(tmp_path, "job", 0)
    for model in (tmp_path / "job", str(tmp_path / "job" / ONNX)):
        opened = Recognizer(model)
        assert (opened.shape, len(opened.names)) == ((1, 28, 28), CLASSES)
        found = opened.recognize(picture)
        assert found.probability == max(found.probabilities.values()) == found.probabilities[found.name]
        assert sum(found.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert opened.recognize(picture.read_bytes()).name == found.name
        many = opened.recognize_all([str(picture)] * 70)
        assert {one.label for one in many} == {found.label}
        assert len(many) == 70
        assert opened.recognize_all([]) == []


def test_several_digits_are_uncertain() -> None:
    """However sure the network is of the one that it saw; what two letters side by side are is up to the data set."""
    image, file = Image.new("L", (120, 80), "white"), BytesIO()
    for left in (20, 80):
        ImageDraw.Draw(image).line((left, 10, left - 5, 70), fill="black", width=8)
    image.save(file, "PNG")
    reads, doubts = (1, 28, 28), []
    for names in (tuple("0123456789"), tuple("abcdefghij")):
        model = Model(reads, 20 / 28, names, None, 0.5, lambda images: np.zeros((len(images), 10), np.float32))
        doubts.append(model.is_uncertain(0.99, model.read(Picture(file.getvalue()), MOST_PIXELS)))
    assert doubts == [True, False]


def test_what_cannot_be_used_is_said(tmp_path: Path, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="does not exist"):
        Recognizer(tmp_path / "none")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(InvalidConfig, match="cannot be loaded"):
        Recognizer(tmp_path / "text.onnx")
    make_model(tmp_path, "job", 0)
    file = BytesIO()
    Image.new("L", (9, 9)).save(file, "PNG")
    for wrong in (b"", b"text", file.getvalue()):
        with pytest.raises(InvalidConfig):
            Recognizer(tmp_path / "job").recognize(wrong)
    monkeypatch.setattr(recognizer, "find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match="pip install onnxruntime"):
        Recognizer(tmp_path / "job")
    with pytest.raises(MissingPackage, match="needs onnxruntime"):
        Recognizer(tmp_path / "job" / ONNX)
    assert picture.exists()


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({}, "'filled'"),
        ({"filled": "much"}, "could not convert"),
        ({"filled": "0.7", "classes": "["}, "JSONDecodeError"),
        ({"filled": "0.7", "classes": '["a", "b"]'}, "of 10 classes, 2 of which have names"),
        ({"filled": "0.7", "confidence": "{}"}, "'uncertain_below'"),
    ],
)
def test_a_network_of_somebody_else_is_refused(tmp_path: Path, properties: dict[str, str], words: str) -> None:
    """A KeyError would end the process that predicts, and fail the requests of all other models with it."""
    model = network(0)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, properties)
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.raises(InvalidConfig, match="does not say how it reads pictures") as caught:
        Recognizer(tmp_path / "foreign.onnx")
    assert words in caught.value.message


def test_other_things_than_pictures_are_refused(tmp_path: Path, picture: Path) -> None:
    """A directory may have the name of a file; pictures may come one by one."""
    make_model(tmp_path, "job.onnx", 0)
    recognize_all: Callable[..., list[Recognition]] = Recognizer(tmp_path / "job.onnx").recognize_all
    for wrong in (np.zeros((28, 28), np.uint8), Image.new("L", (9, 9)), bytearray(b"x"), None, 5):
        with pytest.raises(InvalidConfig, match=f"is of type {type(wrong).__name__}, but must be a path or the bytes"):
            recognize_all([wrong])
    for single in (str(picture), picture.read_bytes()):
        with pytest.raises(InvalidConfig, match="give a list"):
            recognize_all(single)
    assert len(recognize_all(tmp_path.glob("*.png"))) == 1


def test_neither_redis_nor_torch_is_imported(tmp_path: Path, picture: Path) -> None:
    make_model(tmp_path, "job", 0)
    program = (
        "import sys; from preflight import Recognizer; Recognizer(sys.argv[1]).recognize(sys.argv[2])\n"
        "print(*{'torch', 'redis', 'rq', 'worker', 'training'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(tmp_path / "job"), str(picture)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == ""
