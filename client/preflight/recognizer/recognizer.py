"""Recognize pictures in a Python program: `from preflight import Recognizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from preflight.errors import InvalidConfig, MissingPackage
from preflight.pictures.reading import MOST_PIXELS, Picture, Reading
from preflight.recognizer.model import Model
from preflight.recognizer.onnx import ONNX, open_exported

BACKENDS: Final = "preflight.backends"
"""Group of entry points: functions that open the model in a directory without an ONNX file."""
MAX_BATCH: Final = 64
"""Pictures that the network takes at once: with more, no picture takes less time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """Answer of a model for a picture."""

    name: str
    """Name of the class."""
    label: int
    """Number of the class."""
    probability: float
    probabilities: dict[str, float]
    """Probability of each class, by name."""
    uncertain: bool | None
    """Whether the probability lies below the model's threshold, or the picture shows several digits; None: the
    threshold was not measured."""


class Recognizer:
    """A trained model, in memory. It needs no Redis, and torch only where there is no ONNX file.

    recognizer = Recognizer("artifacts/my-job")
    print(recognizer.recognize("seven.png").name)
    """

    def __init__(self, model: str | Path) -> None:
        """Open a model: an exported `.onnx` file, or the directory of a job's model.

        Raises:
            InvalidConfig: there is none.
            MissingPackage: neither ONNX Runtime nor the worker with torch is installed.
        """
        self._model = open_model(Path(model))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self._model.names

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that the network takes."""
        return self._model.shape

    def recognize(self, picture: str | Path | bytes) -> Recognition:
        """Return the answer for a picture, a path or the bytes of its file; raises `InvalidConfig`."""
        (found,) = self.recognize_all([picture])
        return found

    def recognize_all(self, pictures: Iterable[str | Path | bytes]) -> list[Recognition]:
        """Return the answer for each picture, in turn; raises `InvalidConfig` for the first unusable one."""
        if isinstance(pictures, str | bytes):  # whose letters are strings, too
            raise InvalidConfig("pictures is a single one; give a list, or use `recognize`", field="image")
        import numpy as np

        found, pictures = [], list(pictures)
        for first in range(0, len(pictures), MAX_BATCH):
            readings = [self._read(picture) for picture in pictures[first : first + MAX_BATCH]]
            rows = self._model.recognize(np.stack([reading.image for reading in readings])).tolist()
            for row, reading in zip(rows, readings, strict=True):
                label = row.index(max(row))
                found.append(
                    Recognition(
                        name=self.names[label], label=label, probability=row[label],
                        probabilities=dict(zip(self.names, row, strict=True)),
                        uncertain=self._model.is_uncertain(row[label], reading),
                    )
                )  # fmt: skip
        return found

    def _read(self, picture: str | Path | bytes) -> Reading:
        if not isinstance(picture, str | Path | bytes):
            raise InvalidConfig(
                f"a picture is of type {type(picture).__name__}, but must be a path or the bytes of a PNG or JPEG "
                "file; save it as one",
                field="image",
            )
        source = Picture(picture) if isinstance(picture, bytes) else Path(picture)
        return self._model.read(source, MOST_PIXELS)


def open_model(path: Path) -> Model:
    """Return the model of an `.onnx` file, or of a directory: by its ONNX file, else by torch.

    Raises:
        InvalidConfig: there is none.
        MissingPackage: what it needs is not installed.
    """
    exported, is_exported = path / ONNX, path.suffix == ".onnx" and not path.is_dir()  # a job may be named x.onnx
    if is_exported or exported.is_file():
        if find_spec("onnxruntime") is not None:
            return open_exported(path if is_exported else exported)
        if is_exported:
            raise MissingPackage(f"{path} needs onnxruntime, which is not installed; pip install onnxruntime")
    if not path.exists():
        raise InvalidConfig(f"{path} does not exist; name a model's directory or an .onnx file", field="model")
    if find_spec("torch") is None:
        raise MissingPackage(
            f"the model in {path} has no {ONNX} that can be read here, and torch is not installed; "
            "pip install onnxruntime and export the model, or install the worker"
        )
    for entry in entry_points(group=BACKENDS, name="torch"):
        opened: Callable[[Path], Model] = entry.load()
        return opened(path)
    raise MissingPackage(
        f"the model in {path} has no {ONNX}; `preflight export` writes one where the worker is installed"
    )
