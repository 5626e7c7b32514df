"""Loading of a trained model from its artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from preflight.contract.confidence import Confidence
from preflight.contract.spec import MAX_CLASSES, STRICT, DatasetName, Name
from preflight.errors import InvalidConfig
from preflight.files.atomic_files import sha256_of
from preflight.pictures.reading import Filled
from training.artifacts.model_dir import MANIFEST, MODEL, read_manifest

if TYPE_CHECKING:
    from torch import Tensor, nn

CHANGED: Final = 0.65
"""Share of the changes by fine-tuning that is kept."""
INPUT: Final = "input"
"""Name of the input in a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ModelInput:
    """Input of a model."""

    shape: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """Channels, height and width of an image."""
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)]
    mean: float
    """Mean of the training pixels, on the scale 0..255; subtracted first."""
    std: Annotated[float, Field(gt=0)]
    """Standard deviation of the training pixels, on the scale 0..255; divided by then."""
    filled: Filled
    """Share of the image's side that the drawing fills, in the median training image."""
    class_names: tuple[str, ...] = ()
    """Class names of imported data; empty: the numbers of the classes."""
    inverted: bool | None = None
    """Whether the pictures of imported data were inverted; None: a drawing is cut out and centred, as in MNIST."""

    def name(self, label: int) -> str:
        """Return the name of a class."""
        return self.class_names[label] if self.class_names else str(label)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ModelArtifact:
    """A whole artifact."""

    directory: Path
    name: Name
    """Registered name of the model."""
    dataset: DatasetName
    reads: ModelInput
    confidence: Confidence | None = None
    """Confidence as measured at the end of the training; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class InitialWeights:
    """The model that a training starts from."""

    directory: Path
    """Directory of its artifact."""
    model_sha256: str


_TRAINED = TypeAdapter(ModelArtifact)


def find(path: Path) -> ModelArtifact:
    """Return the artifact that is at `path`, a directory or the `model.safetensors` in it; without torch.

    Raises:
        InvalidConfig: there is none, it is damaged, or its manifest has no input.
    """
    directory = path.parent if path.name == MODEL else path
    manifest = read_manifest(directory)
    if manifest is None:
        raise InvalidConfig(
            f"{directory} holds no whole model: {MODEL} and a {MANIFEST} with its sha256 must lie there; "
            "name the directory that `preflight train` printed",
            field="model",
        )
    match manifest:
        case {"spec": {"model": str(name), "dataset": str(dataset)}, "input": dict(reads)}:
            metrics = manifest.get("metrics")
            confidence = metrics.get("confidence") if isinstance(metrics, dict) else None
            found = {
                "directory": str(directory), "name": name, "dataset": dataset, "reads": reads, "confidence": confidence,
            }  # fmt: skip
            try:
                return _TRAINED.validate_json(json.dumps(found))
            except ValidationError:
                pass
    raise InvalidConfig(f"{directory / MANIFEST} does not describe the input of a model; train it again", field="model")


def load(trained: ModelArtifact) -> nn.Module:
    """Return a module that takes images uint8 [B, C, H, W] to probabilities float32 [B, classes].

    Raises:
        InvalidConfig: the model is not registered here, or its weights are those of another one.
    """
    import torch
    from safetensors.torch import load_file
    from torch import nn

    from training.models.factory import build

    class InferenceModel(nn.Module):
        """The model between normalization and softmax."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            """Normalise, recognize, and turn logits into probabilities."""
            logits: Tensor = self.model((images.to(torch.float32) - trained.reads.mean) / trained.reads.std)
            return (logits / temperature).softmax(1)

    temperature = trained.confidence.temperature if trained.confidence else 1.0
    model = build(trained.name, trained.reads.shape, trained.reads.classes)
    try:
        model.load_state_dict(load_file(trained.directory / MODEL))
    except RuntimeError as error:
        raise InvalidConfig(
            f"the weights in {trained.directory} are not those of the model {trained.name!r} that is registered here; "
            "install the package it was trained with",
            field="model",
        ) from error
    return InferenceModel(model).eval()


def copy_weights(model: nn.Module, weights: InitialWeights, share: float = 0.0) -> list[str]:
    """Put the weights of a trained model into one of the same network; return the tensors that stay as they are.

    Those are the last layer's where the numbers of classes differ: only their first dimensions are not the same.
    `share`: how much of the difference between both is left, 0 to 1; buffers of whole numbers stay where it is not 0.

    Raises:
        InvalidConfig: the model has changed or is gone, or its network is another one.
    """
    import torch

    stored, own = _stored(weights), model.state_dict()
    fresh = [name for name in own if name in stored and stored[name].shape != own[name].shape]
    if stored.keys() != own.keys() or any(stored[name].shape[1:] != own[name].shape[1:] for name in fresh):
        raise InvalidConfig(
            f"the weights in {weights.directory} are those of another network than is registered here under this name; "
            "install the package it was trained with",
            field="init_from",
        )
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in fresh and (not share or tensor.is_floating_point()):
                tensor.copy_(stored[name] if not share else torch.lerp(stored[name], tensor.cpu(), share))
    return fresh


def average_weights(model: nn.Module, weights: InitialWeights) -> None:
    """Take back a part of what fine-tuning has changed: the model keeps more of what it knew than it loses.

    That is the mean of weights of Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv:2109.01903). A
    network with a new last layer stays as it is, for that layer has no weights to return to. Raises as `copy_weights`.
    """
    stored = _stored(weights)
    if all(stored[name].shape == tensor.shape for name, tensor in model.state_dict().items() if name in stored):
        copy_weights(model, weights, CHANGED)


def _stored(weights: InitialWeights) -> dict[str, Tensor]:
    """Return the tensors of a model; raises `InvalidConfig` where it is gone or another lies there."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = weights.directory / MODEL
    try:
        if sha256_of(path) != weights.model_sha256:
            raise OSError(None, "another model lies there now")
        return load_file(path)
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidConfig(
            f"the model {weights.model_sha256[:12]} in {weights.directory} cannot be read ({why}); start from another",
            field="init_from",
        ) from error
