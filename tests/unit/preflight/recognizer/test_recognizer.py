"""A model in a Python program: by ONNX Runtime, without Redis and torch."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from support.files.named_models import CLASSES, make_model

from preflight import Recognizer
from preflight.errors import InvalidConfig, MissingPackage
from preflight.recognizer import recognizer
from preflight.recognizer.onnx import ONNX


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
