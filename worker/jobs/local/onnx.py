"""`preflight export`: a trained model as ONNX."""

import os
import tempfile
from pathlib import Path

from training.artifacts import onnx_child
from training.artifacts.loading import find
from training.artifacts.onnx_child import ONNX, OnnxRequest
from training.errors import InvalidConfig
from training.process.child import Child, follow
from training.system.requirements import require_onnx_packages, require_training_packages
from training.system.resources import detect
from worker.config.settings import Settings, child_environment
from worker.jobs.local.training import dataset_here


def export_here(artifact: Path, target: Path | None, settings: Settings) -> str:
    """Export the model of an artifact to `target`, by default beside it, and return a sentence about the file.

    It is held against the model on the whole test set of its data set, which is prepared where it is not.

    Raises:
        InvalidConfig: there is no such artifact, or the file cannot be written.
        MissingPackage: the extra `onnx` is not installed.
        PreflightError: the exported model does not say what the model does.
    """
    require_training_packages()
    require_onnx_packages()
    trained = find(artifact)
    target = trained.directory / ONNX if target is None else target.absolute()
    if not (target.parent.is_dir() and os.access(target.parent, os.W_OK)) or target.is_dir():
        raise InvalidConfig(
            f"{target} cannot be written; name a file in a directory that is there and writable", field="onnx"
        )
    store = dataset_here(trained.dataset, settings)
    request = OnnxRequest(artifact=trained.directory, target=target, store=store.path, threads=detect().cores)
    body = onnx_child.REQUEST.dump_json(request)
    with (
        tempfile.TemporaryDirectory(prefix="preflight-") as directory,
        Child(onnx_child.MODULE, body, Path(directory), child_environment()) as child,
    ):
        *_, done = follow(child, lambda: None)
    return (
        f"{target}  {done.payload['samples']:,} test samples are recognized as by the model, "
        f"their probabilities within {done.payload['difference']:.1e}"
    )
