"""Where a job's files lie. Names that come from Redis stay beneath their root, and symbolic links are not followed."""

import re
import shutil
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from training.artifacts.publish import ATTEMPTS, attempt_of
from training.errors import ArtifactError
from training.system.locks import Held, use
from worker.config.settings import Settings

JOBS: Final = "jobs"
"""In the state directory, what attempts of each job leave for those after them."""
STAGING: Final = "~staging"
"""Beside the finished models, under a name that no job can have."""
NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
"""Name of an attempt's directory."""


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of one attempt of a job."""

    job: Path
    """What its attempts leave for each other."""
    attempt: Path
    """Checkpoints, events and the files of the children; made here."""
    staged: Path
    """Where the model is written before it is published."""
    artifact: Path
    """Where the finished model goes."""
    locks: ExitStack = field(compare=False)
    """Say to `worker.ops.janitor` that this attempt lives."""

    def close(self) -> None:
        """End the use of the directories, as the end of the process does."""
        self.locks.close()

    def clear(self) -> None:
        """Remove what no later attempt needs, once the job is finished."""
        shutil.rmtree(self.job, ignore_errors=True)
        shutil.rmtree(self.staged.parent, ignore_errors=True)


def places(settings: Settings, job_id: str, attempt: int) -> Places:
    """Return the places of an attempt, its directory made; they are in use until `close` or the end of the process.

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
        see_that_writable(own, "PREFLIGHT_STATE_DIR")
        stack.enter_context(closing(_used(staged.parent, "PREFLIGHT_ARTIFACT_DIR")))
        see_that_writable(staging, "PREFLIGHT_ARTIFACT_DIR")
        return Places(job=job, attempt=own, staged=staged, artifact=artifact, locks=stack.pop_all())


def _used(directory: Path, variable: str) -> Held:
    try:
        return use(directory)
    except OSError as error:
        raise _unwritable(directory, variable, error) from error


def next_attempt(settings: Settings, job_id: str) -> int:
    """Return the number of the next attempt of a job, as far as this disk knows: by its model, too, if there is one."""
    numbers = attempts(settings.state_dir / JOBS / job_id)
    last = max([attempt_of(settings.artifact_dir / job_id), *numbers])
    return min(last + 1, ATTEMPTS - 1)


def attempts(job: Path) -> list[int]:
    """Return the numbers of the attempts that left something in the directory of a job, in order."""
    try:
        names = [path.name for path in job.iterdir()]
    except OSError:  # not there, or not to be read; `places` says so
        return []
    return sorted(int(name) for name in names if NUMBER.fullmatch(name))


def see_that_writable(directory: Path, variable: str) -> None:
    """Make a directory and write into it: permission bits say nothing of read-only mounts and full disks.

    Raises:
        ArtifactError: it cannot be written; the message names the variable that sets it.
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
        return False  # not to be looked at; writing there says why
