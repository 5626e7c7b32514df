"""ONNX export for `preflight export`."""

import os
import tempfile
from pathlib import Path

from preflight.container.resources import detect
from preflight.errors import InvalidConfig
from preflight.recognizer.onnx import ONNX
from training.artifacts import onnx_child
from training.artifacts.loading import find
from training.artifacts.onnx_child import OnnxRequest
from training.process.runner import run_child
from training.system.requirements import require_onnx_packages, require_training_packages
from worker.config.settings import Settings, child_environment
from worker.jobs.local.training import dataset_local


def export_local(artifact: Path, target: Path | None, settings: Settings) -> str:
    """Export a model to `target`, by default in its directory, and return a sentence about the file.

    The export is compared with the model on the whole test set, which is prepared where necessary.

    Raises:
        InvalidConfig: there is no such artifact, or the file cannot be written.
        MissingPackage: the extra `onnx` is not installed.
        PreflightError: the exported model predicts differently.
    """
    require_training_packages()
    require_onnx_packages()
    trained = find(artifact)
    target = trained.directory / ONNX if target is None else target.absolute()
    if not (target.parent.is_dir() and os.access(target.parent, os.W_OK)) or target.is_dir():
        raise InvalidConfig(
            f"{target} cannot be written; name a file in a directory that is there and writable", field="onnx"
        )
    store = dataset_local(trained.dataset, settings)
    request = OnnxRequest(artifact=trained.directory, target=target, store=store.path, threads=detect().cores)
    body = onnx_child.REQUEST.dump_json(request)
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        done = run_child(onnx_child.MODULE, body, Path(directory), child_environment(), task="ONNX export")
    return (
        f"{target}  {done['samples']:,} test samples are recognized as by the model, "
        f"their probabilities within {done['difference']:.1e}"
    )
