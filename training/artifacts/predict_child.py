"""Prediction child: a trained model classifies pictures, which are untrusted."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from preflight.errors import InvalidConfig
from preflight.files.journal import JournalWriter
from training.artifacts.as_trained import read_as_trained
from training.artifacts.loading import find, load
from training.artifacts.onnx_child import CLASSES, CONFIDENCE, FILLED, IMAGES, INVERTED, PROBABILITIES
from training.artifacts.preprocess import (
    MOST_PIXELS,
    Picture,
    Reading,
    read_as_imported,
    read_colour_picture,
    read_drawing,
    read_file,
)
from training.importing.form import Form
from training.process.child_main import StopFlag, serve_request

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MODULE: Final = "training.artifacts.predict_child"


@validated(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class PredictRequest:
    """Which model is asked, about what."""

    model: Path
    """An artifact's directory, the model in it, or an exported `.onnx` file."""
    images: tuple[Path, ...]


REQUEST = TypeAdapter(PredictRequest)


@dataclass(frozen=True)
class Model:
    """A model that can be asked."""

    shape: tuple[int, int, int]
    """Channels, 1 or 3, height and width of an image."""
    filled: float
    names: tuple[str, ...]
    """Of the classes."""
    inverted: bool | None
    """As `ModelInput` has it."""
    uncertain_below: float | None
    """Probability below which an answer is uncertain; None: not measured."""
    recognize: "Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]"
    """Takes images [N, C, H, W], returns probabilities [N, classes]."""

    @cached_property
    def quoted(self) -> tuple[str, ...]:
        """The names of the classes as JSON."""
        return tuple(json.dumps(name) for name in self.names)

    def is_uncertain(self, probability: float) -> bool | None:
        """Whether an answer of this probability is uncertain; None: the model's threshold was not measured."""
        return None if self.uncertain_below is None else bool(probability < self.uncertain_below)

    def read(self, path: Path | Picture, most_pixels: int) -> Reading:
        """Return the picture at `path` as the model takes it; raises `InvalidConfig`."""
        channels, height, width = self.shape
        if self.inverted is not None:
            form = Form(height=height, width=width, channels=channels, invert=self.inverted)
            return Reading(read_as_imported(path, form, most_pixels))
        if channels == 1:
            known = read_as_trained(read_file(path), height, width, self.filled)
            if known is not None:
                return Reading(known[None])
            return read_drawing(path, height, width, self.filled, most_pixels=most_pixels)
        return Reading(read_colour_picture(path, height, width, most_pixels=most_pixels))


def run(request: PredictRequest, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Record for each image, in turn, `prediction` with what is seen in it, or `refused` with why not; then `done`."""
    model = open_model(request.model)
    for path in request.images:
        predict(model, path, journal)
    journal.write("done", {}, durable=True)


def open_model(path: Path) -> Model:
    """Return the model at `path`, as `PredictRequest` names it; raises `InvalidConfig` where there is none."""
    return _exported(path) if path.suffix == ".onnx" else _trained(path)


def predict(model: Model, path: Path, journal: JournalWriter) -> None:
    """Record `prediction` with what the model sees in the picture at `path`, or `refused` with why not."""
    try:
        reading = model.read(path, MOST_PIXELS)
    except InvalidConfig as error:
        journal.write("refused", {"message": error.message}, durable=True)
        return
    (probabilities,) = model.recognize(reading.image[None])
    label = int(probabilities.argmax())
    said = {
        "label": label, "name": model.names[label], "confidence": float(probabilities[label]),
        "classes": [*model.names], "probabilities": probabilities.tolist(),
        "uncertain": model.is_uncertain(float(probabilities[label])),
        "reading": reading.described(),
    }  # fmt: skip
    journal.write("prediction", {"image": str(path), **said}, durable=True)


def _trained(path: Path) -> Model:
    """Return the model of an artifact."""
    trained = find(path)
    shape, reads = _pictured(path, trained.reads.shape), trained.reads
    import torch

    whole = load(trained)
    torch.set_num_threads(1)  # more would wait for each other over one small image

    def recognize(images: "npt.NDArray[np.uint8]") -> "npt.NDArray[np.float32]":
        with torch.inference_mode():
            found: npt.NDArray[np.float32] = whole(torch.from_numpy(images)).numpy()
        return found

    names = tuple(reads.name(label) for label in range(reads.classes))
    below = trained.confidence.uncertain_below if trained.confidence else None
    return Model(shape, reads.filled, names, reads.inverted, below, recognize)


def _exported(path: Path) -> Model:
    """Return an exported model.

    Raises:
        InvalidConfig: the file is none that `preflight export` made.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a training may need the processor
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no class in common
        raise InvalidConfig(
            f"{path} cannot be loaded ({error}); name a file of `preflight export`", field="model"
        ) from error
    reads = session.get_inputs()
    if [(each.name, each.type, len(each.shape)) for each in reads] != [(IMAGES, "tensor(uint8)", 4)]:
        raise InvalidConfig(
            f"{path} does not read {IMAGES} as uint8 [N, C, H, W]; name a file of `preflight export`", field="model"
        )
    shape = _pictured(path, tuple(reads[0].shape[1:]))
    said = session.get_modelmeta().custom_metadata_map
    classes = session.get_outputs()[0].shape[1]
    names = json.loads(said[CLASSES]) if CLASSES in said else [str(label) for label in range(classes)]

    def recognize(images: "npt.NDArray[np.uint8]") -> "npt.NDArray[np.float32]":
        found: npt.NDArray[np.float32] = session.run([PROBABILITIES], {IMAGES: images})[0]
        return found

    inverted = json.loads(said[INVERTED]) if INVERTED in said else None
    below = json.loads(said[CONFIDENCE])["uncertain_below"] if CONFIDENCE in said else None
    return Model(shape, float(said[FILLED]), tuple(names), inverted, below, recognize)


def _pictured(path: Path, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the shape of a model's images; raises `InvalidConfig` for those that no picture can be made into."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise InvalidConfig(
            f"the model in {path} reads images of {channels} channels, but pictures are grey, their ink, or in colour; "
            "name a model of images with 1 or 3 channels",
            field="model",
        )
    return channels, height, width


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
