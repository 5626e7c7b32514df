"""Promotion of a job's model: its files are found, and exported as ONNX where that can be done and was not."""

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from preflight.errors import InvalidConfig, PreflightError
from preflight.recognizer.onnx import ONNX
from preflight.wire import is_job_id
from training.artifacts import onnx_child
from training.artifacts.onnx_child import OnnxRequest
from training.process.runner import run_child
from training.system.requirements import NEEDED, NEEDED_FOR_ONNX
from worker.config.settings import child_environment
from worker.models.records import Alias
from worker.models.store import Author, ModelStore


def require_artifact(artifact_dir: Path, job: str) -> Path:
    """Return the directory of a job's model, or the one at the path `job`; raises `InvalidConfig` where none is."""
    for path in ((artifact_dir / job,) if is_job_id(job) else ()) + (Path(job).absolute(),):
        if path.is_dir() and not path.is_symlink():
            return path
    raise InvalidConfig(
        f"{artifact_dir} has no model of job {job!r}; name a finished job whose model is on this machine, or the "
        "directory of a model",
        field="job",
    )


def promote_artifact(
    store: ModelStore, alias: str, artifact: Path, author: Author, *, expected: int | None = None
) -> Alias:
    """Promote the model in `artifact` as `ModelStore.promote` does, with an ONNX file that predictions read.

    Without the packages, and for a network that ONNX cannot express, the model is promoted without one: torch predicts.

    Raises:
        PreflightError: as `ModelStore.promote` does.
    """
    store.path(alias)
    if (artifact / ONNX).is_file() or not all(find_spec(name) for name in (*NEEDED, *NEEDED_FOR_ONNX)):
        return store.promote(alias, artifact, author, expected=expected)
    with TemporaryDirectory(prefix="preflight-") as directory:
        target = Path(directory) / ONNX
        body = onnx_child.REQUEST.dump_json(OnnxRequest(artifact=artifact, target=target, store=None, threads=1))
        try:
            run_child(onnx_child.MODULE, body, Path(directory), child_environment(), task="ONNX export")
        except InvalidConfig:
            raise
        except PreflightError as error:
            structlog.get_logger("preflight").warning("onnx_left_out", message=error.message)
            return store.promote(alias, artifact, author, expected=expected)
        return store.promote(alias, artifact, author, expected=expected, beside={ONNX: target})
