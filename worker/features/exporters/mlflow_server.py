"""Checks of an MLflow server before a run is logged: whether it takes runs, and where it keeps their files."""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from preflight.errors import ArtifactError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

LIST: Final = "/api/2.0/mlflow/artifacts/list"
SECONDS: Final = 30
REMEDY: Final = (
    "start it with --serve-artifacts and --artifacts-destination, so that files go through it, and set "
    "PREFLIGHT_MLFLOW_EXPERIMENT to a new name, as an experiment keeps its path"
)


def open_experiment(client: "MlflowClient", name: str) -> str:
    """Return the id of an experiment, created where it is missing.

    Raises:
        ArtifactError: it is deleted.
    """
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name))
    if found.lifecycle_stage == "deleted":
        raise ArtifactError(
            f"the MLflow experiment {name!r} is deleted; restore it "
            f"(mlflow experiments restore --experiment-id {found.experiment_id}), or set PREFLIGHT_MLFLOW_EXPERIMENT "
            "to another name"
        )
    return str(found.experiment_id)


def local_path(uri: str) -> Path | None:
    """Return the path of an artifact location on a local disk; None: it is somewhere else."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(uri) if not parts.scheme else None


def explain_elsewhere(client: "MlflowClient", run: "Run") -> str | None:
    """Return why the files of a run would not reach its server; None: they do.

    A server without --serve-artifacts gives its clients a path on its own disk, and MLflow's client writes to that path
    wherever it runs. A test file that the server lists, or does not list, shows whether the disk is shared.
    """
    path = local_path(str(run.info.artifact_uri))
    if path is None or not client.tracking_uri.startswith(("http://", "https://")):
        return None
    name, made = f"preflight-{uuid.uuid4().hex}", list(_missing(path))
    why = "is a path on its own disk"
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
        if name in _listed(client.tracking_uri, str(run.info.run_id)):
            return None
    except OSError as error:
        why = f"is a path on its own disk and cannot be written here ({error.strerror})"
    finally:
        with suppress(OSError):
            (path / name).unlink(missing_ok=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
    return f"the MLflow server keeps files in {path.parent.parent}, which {why}; {REMEDY}"


def _missing(path: Path) -> Iterator[Path]:
    """Yield the folders that have to be made for `path`, the deepest first."""
    for folder in (path, *path.parents):
        if folder.exists():
            return
        yield folder


def _listed(uri: str, run_id: str) -> set[str]:
    """Return the names of the files of a run that the server itself sees."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    answer = http_request(get_default_host_creds(uri), LIST, "GET", params={"run_id": run_id}, timeout=SECONDS)
    if answer.status_code != 200:
        return set()
    match answer.json():
        case {"files": list(files)}:
            return {str(file.get("path")) for file in files if isinstance(file, dict)}
    return set()
