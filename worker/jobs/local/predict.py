"""`preflight predict`: what a trained model sees in pictures."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from training.artifacts import predict_child
from training.artifacts.predict_child import PredictRequest
from training.errors import InvalidConfig
from training.process.child import Child, follow
from training.system.requirements import require_onnx_packages, require_training_packages
from worker.config.settings import child_environment


class Seen(BaseModel):
    """What a model sees in a picture."""

    image: str
    """Its path, as it was given."""
    label: int
    confidence: float
    """Probability of the label."""
    probabilities: list[float]
    """Of every label."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A picture that was not looked at."""

    why: str
    """One sentence."""


def predict_here(model: Path, images: Sequence[Path]) -> Iterator[Seen | Refused]:
    """Yield what `model` sees in each of `images`, in turn, or why it was not looked at.

    Raises:
        InvalidConfig: there is no such model.
        MissingPackage: it cannot be run here.
    """
    if model.suffix == ".onnx":
        require_onnx_packages()
    else:
        require_training_packages()
    try:
        body = predict_child.REQUEST.dump_json(PredictRequest(model=model, images=tuple(images)))
    except ValueError as error:
        raise InvalidConfig("the name of a file is not UTF-8; rename it", field="image") from error
    with (
        tempfile.TemporaryDirectory(prefix="preflight-") as directory,
        Child(predict_child.MODULE, body, Path(directory), child_environment()) as child,
    ):
        for record in follow(child, lambda: None):
            if record.kind == "prediction":
                yield Seen.model_validate(record.payload)
            elif record.kind == "refused":
                yield Refused(str(record.payload["message"]))
