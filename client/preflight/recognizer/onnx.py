"""Models as ONNX files: names and metadata that `preflight export` writes, and how they are opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preflight.errors import InvalidConfig
from preflight.recognizer.model import Model, as_pictured

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ONNX: Final = "model.onnx"
"""Name of the file in the directory of a model."""
IMAGES, PROBABILITIES = "images", "probabilities"
"""The input, uint8 [N, C, H, W] with 0 for background and 255 for ink, and the output, float32 [N, classes]."""
CLASSES: Final = "classes"
"""Name of a metadata property: the names of the classes as a JSON array, in the order of the probabilities."""
INVERTED: Final = "inverted"
"""Name of a metadata property, `true` or `false`, of a model of imported data: see `ModelInput`."""
PREPROCESSING: Final = "preprocessing"
"""Name of a metadata property: how an image is made of a picture, in words."""
FILLED: Final = "filled"
"""Name of a metadata property: see `ModelInput`."""
CONFIDENCE: Final = "confidence"
"""Name of a metadata property: `Confidence` as JSON; the graph divides by its temperature."""


def open_exported(path: Path) -> Model:
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
    if [(each.name, each.type, [*map(type, each.shape[1:])]) for each in reads] != [
        (IMAGES, "tensor(uint8)", [int] * 3)
    ]:
        raise InvalidConfig(
            f"{path} does not read {IMAGES} as uint8 [N, C, H, W]; name a file of `preflight export`", field="model"
        )
    shape = as_pictured(path, tuple(reads[0].shape[1:]))
    said, answers = session.get_modelmeta().custom_metadata_map, session.get_outputs()[0]
    try:
        classes = answers.shape[1]
        names = tuple(map(str, json.loads(said[CLASSES]) if CLASSES in said else range(classes)))
        filled = float(said[FILLED])
        inverted = json.loads(said[INVERTED]) if INVERTED in said else None
        below = float(json.loads(said[CONFIDENCE])["uncertain_below"]) if CONFIDENCE in said else None
        if (answers.name, classes) != (PROBABILITIES, len(names)):
            raise ValueError(f"{answers.name} of {classes} classes, {len(names)} of which have names")
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidConfig(
            f"{path} does not say how it reads pictures and names its classes ({type(error).__name__}: {error}); name "
            "a file of `preflight export`",
            field="model",
        ) from error

    def recognize(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = session.run([PROBABILITIES], {IMAGES: images})[0]
        return found

    return Model(shape, filled, names, inverted, below, recognize)
