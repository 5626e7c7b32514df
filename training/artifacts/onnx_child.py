"""ONNX export child: exports a model, and compares both on the whole test set."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.errors import ArtifactError, PreflightError
from preflight.files.atomic_files import sync_directory
from preflight.files.journal import JournalWriter
from preflight.recognizer.onnx import CLASSES, CONFIDENCE, FILLED, IMAGES, INVERTED, PREPROCESSING, PROBABILITIES
from training.artifacts.loading import ModelArtifact, ModelInput, find, load
from training.data.dataset_store import open_dataset
from training.process.child_main import StopFlag, serve_request

if TYPE_CHECKING:
    from torch import Tensor, nn

MODULE: Final = "training.artifacts.onnx_child"
OPSET: Final = 18
BATCH: Final = 500
NOISES: Final = 128
"""Images of noise on which an export is compared with its model where there is no data set."""
TIE: Final = 1e-4
"""Two probabilities that are nearer to each other than this may change places."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class OnnxRequest:
    """Model to export, file to write, and data to compare both on."""

    artifact: Path
    target: Path
    """Path of the ONNX file; its directory exists."""
    store: Path | None
    """The prepared data set on whose test samples both are compared; None: they are compared on noise."""
    threads: int


REQUEST = TypeAdapter(OnnxRequest)


def run(request: OnnxRequest, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Export, compare, and record `done` with the samples and the largest difference of a probability."""
    trained = find(request.artifact)
    import torch

    torch.set_num_threads(request.threads)
    model, target = load(trained), request.target
    images = _noise(trained.reads) if request.store is None else open_dataset(request.store).test_images
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as directory:
            written = Path(directory) / target.name
            export(model, images[:2], trained, written)
            difference = largest_difference(model, written, images, request.threads)
            written.replace(target)
        sync_directory(target.parent)
    except OSError as error:
        raise ArtifactError(f"{target} could not be written: {error.strerror}; name another file") from error
    journal.write("done", {"samples": len(images), "difference": difference}, durable=True)


def _noise(reads: ModelInput) -> "Tensor":
    """Return random images, uint8 [N, C, H, W], the same ones each time."""
    import torch

    return torch.randint(0, 256, (NOISES, *reads.shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def export(model: "nn.Module", images: "Tensor", trained: ModelArtifact, path: Path) -> None:
    """Write `model`, which takes `images` uint8 [B, C, H, W], as ONNX with any number of images.

    Its metadata say how the images are made from pictures, and what the classes are named.

    Raises:
        PreflightError: torch cannot express it in ONNX.
    """
    import torch

    try:
        program = torch.onnx.export(
            model, (images,), input_names=[IMAGES], output_names=[PROBABILITIES], opset_version=OPSET,
            dynamic_shapes=({0: torch.export.Dim("samples")},), dynamo=True, verbose=False,
        )  # fmt: skip
    except torch.onnx.errors.OnnxExporterError as error:
        cause = error.__cause__ or error  # its own words are advice, in colours
        first_line = str(cause).strip().partition("\n")[0]
        raise PreflightError(
            f"torch cannot express the model in ONNX ({type(cause).__name__}: {first_line})"
        ) from error
    if program is None:
        raise AssertionError("with dynamo there is a program")
    reads = trained.reads
    program.model.metadata_props[FILLED] = str(reads.filled)
    program.model.metadata_props[CLASSES] = json.dumps([reads.name(label) for label in range(reads.classes)])
    program.model.metadata_props[PREPROCESSING] = describe_preprocessing(reads)
    if reads.inverted is not None:
        program.model.metadata_props[INVERTED] = json.dumps(reads.inverted)
    if trained.confidence is not None:
        program.model.metadata_props[CONFIDENCE] = json.dumps(asdict(trained.confidence))
    program.save(path)


def describe_preprocessing(reads: ModelInput) -> str:
    """Return how an image is made of a picture, in words, for those who read the file without this package."""
    channels, height, width = reads.shape
    size = f"uint8 [N, {channels}, {height}, {width}]"
    if reads.inverted is not None:
        inverted = ", then 255 minus each pixel" if reads.inverted else ""
        return f"{size}: the picture is scaled to fit and centred on black{inverted}; the graph normalizes"
    if channels != 1:
        return f"{size}: the picture in RGB is scaled to fit and centred on black; the graph normalizes"
    return (
        f"{size}, 0 for background and 255 for ink: the drawing is cut out, scaled so that its longer side has "
        f"{reads.filled:.3f} of the image's, and placed with its centre of mass in the middle; the graph normalizes"
    )


def largest_difference(model: "nn.Module", path: Path, images: "Tensor", threads: int) -> float:
    """Return the largest difference between a probability of `model` and of the ONNX file at `path`.

    Raises:
        PreflightError: one of `images` is recognized as something else, ties apart.
    """
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    largest = 0.0
    with torch.inference_mode():
        for first, some in enumerate(torch.split(images, BATCH)):
            expected = model(some)
            (got,) = session.run([PROBABILITIES], {IMAGES: some.numpy()})
            exported = torch.from_numpy(got)
            largest = max(largest, float((exported - expected).abs().max()))
            lead = expected.amax(1) - expected.gather(1, exported.argmax(1, keepdim=True))[:, 0]
            if float(lead.max()) > TIE:
                sample = first * BATCH + int(lead.argmax())
                raise PreflightError(
                    f"the ONNX model is refused: it takes test sample {sample} for another class than the model does, "
                    f"and the largest difference of a probability is {largest:.1e}"
                )
    return largest


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
