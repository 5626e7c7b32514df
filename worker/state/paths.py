"""Paths of a job's files. Names from Redis stay beneath their root; symbolic links are not followed."""

import re
import shutil
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from preflight.errors import ArtifactError
from preflight.files.locks import Held, use
from training.artifacts.model_dir import ATTEMPTS, attempt_of
from worker.config.settings import Settings

JOBS: Final = "jobs"
"""Name of the directory, in the state directory, of files that the attempts of each job share."""
STAGING: Final = "~staging"
"""Name of the directory next to the finished models; no job can have this name."""
NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
"""Name of an attempt's directory."""


@dataclass(frozen=True, slots=True)
class JobPaths:
    """The directories of one attempt of a job."""

    job: Path
    """Directory that the attempts of the job share."""
    attempt: Path
    """Directory of checkpoints, events and the files of child processes; it exists."""
    staged: Path
    """Directory of the model before it is published."""
    artifact: Path
    """Directory of the finished model."""
    locks: ExitStack = field(compare=False)
    """Locks held while the attempt runs; `worker.queue.maintenance.janitor` checks them."""

    def close(self) -> None:
        """Release the locks, as the end of the process does."""
        self.locks.close()

    def clear(self) -> None:
        """Remove what no later attempt needs, once the job is finished."""
        shutil.rmtree(self.job, ignore_errors=True)
        shutil.rmtree(self.staged.parent, ignore_errors=True)


def open_paths(settings: Settings, job_id: str, attempt: int) -> JobPaths:
    """Return the paths of an attempt, its directory made; they stay locked until `close` or the end of the process.

    Raises:
        ArtifactError: a directory cannot be written, or is a symbolic link.
    """
    job, staging = settings.state_dir / JOBS / job_id, settings.artifact_dir / STAGING
    own, staged, artifact = job / str(attempt), staging / job_id / str(attempt), settings.artifact_dir / job_id
    for path in (job.parent, job, own, staging, staged.parent, staged, artifact):
        if _is_symlink(path):
            raise ArtifactError(f"{path} is a symbolic link and is not followed; remove it")
    with ExitStack() as stack:
        stack.enter_context(closing(_used(job, "PREFLIGHT_STATE_DIR")))
        require_writable(own, "PREFLIGHT_STATE_DIR")
        stack.enter_context(closing(_used(staged.parent, "PREFLIGHT_ARTIFACT_DIR")))
        require_writable(staging, "PREFLIGHT_ARTIFACT_DIR")
        return JobPaths(job=job, attempt=own, staged=staged, artifact=artifact, locks=stack.pop_all())


def _used(directory: Path, variable: str) -> Held:
    try:
        return use(directory)
    except OSError as error:
        raise _unwritable(directory, variable, error) from error


def next_attempt(settings: Settings, job_id: str) -> int:
    """Return the number after the last attempt on this disk, that of the published model included."""
    numbers = attempts(settings.state_dir / JOBS / job_id)
    last = max([attempt_of(settings.artifact_dir / job_id), *numbers])
    return min(last + 1, ATTEMPTS - 1)


def has_attempts(settings: Settings, job_id: str | None) -> bool:
    """Whether this disk has an attempt at a job."""
    return job_id is not None and next_attempt(settings, job_id) > 1


def attempts(job: Path) -> list[int]:
    """Return the numbers of the attempts in the directory of a job, in order."""
    try:
        names = [path.name for path in job.iterdir()]
    except OSError:  # missing or unreadable, which `open_paths` reports
        return []
    return sorted(int(name) for name in names if NUMBER.fullmatch(name))


def require_writable(directory: Path, variable: str) -> None:
    """Make a directory and write a file: permission bits do not show read-only mounts and full disks.

    Raises:
        ArtifactError: it cannot be written; the message names its variable.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"preflight")
    except OSError as error:
        raise _unwritable(directory, variable, error) from error


def _unwritable(directory: Path, variable: str, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"{directory} cannot be written ({error.strerror or error}); "
        f"make room or set {variable} to a writable directory"
    )


def _is_symlink(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:
        return False  # unreadable: writing there reports why
