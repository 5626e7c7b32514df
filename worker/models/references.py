"""References to models: an alias, `alias@hash`, the id of a finished job, or a path."""

from pathlib import Path

from preflight.errors import InvalidConfig
from preflight.wire import is_job_id
from training.artifacts.model_dir import read_manifest
from worker.config.settings import Settings
from worker.models.store import open_store


def find_directory(settings: Settings, reference: str) -> Path:
    """Return the directory of the model that an alias, `alias@hash` or a job names; an alias comes first.

    Producers choose the names of jobs, but not those of aliases: a job cannot pass itself off as one.

    Raises:
        InvalidConfig: nothing has this name, or it has no whole model.
        ArtifactError: the alias or its model is damaged.
    """
    try:
        return open_store(settings).resolve(reference).directory
    except InvalidConfig:
        if "@" in reference:
            raise
    artifact = settings.artifact_dir / reference
    if not is_job_id(reference) or read_manifest(artifact) is None:
        raise InvalidConfig(
            f"no alias is named {ascii(reference)[:100]}, and {settings.artifact_dir} holds no whole model of such a "
            "job, which may be running, have failed or be deleted; name a finished job, or an alias that "
            "`preflight models list` shows",
            field="model",
        )
    return artifact


def find_path(settings: Settings, reference: str) -> Path:
    """Return the path `reference` where there is one, or it cannot be a name; else as `find_directory` does."""
    path = Path(reference)
    return path if "/" in reference or path.suffix == ".onnx" or path.exists() else find_directory(settings, reference)
