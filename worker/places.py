"""Where a job's files lie. Names that come from Redis stay beneath their root, and symbolic links are not followed."""

import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from training.errors import ArtifactError
from worker.settings import Settings

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

    def clear(self) -> None:
        """Remove what no later attempt needs, once the job is finished."""
        shutil.rmtree(self.job, ignore_errors=True)
        shutil.rmtree(self.staged.parent, ignore_errors=True)


def places(settings: Settings, job_id: str, attempt: int) -> Places:
    """Return the places of an attempt, its directory made.

    Raises:
        ArtifactError: a directory cannot be written, or is a symbolic link.
    """
    staging = settings.artifact_dir / STAGING
    found = Places(
        job=settings.state_dir / "jobs" / job_id,
        attempt=settings.state_dir / "jobs" / job_id / str(attempt),
        staged=staging / job_id / str(attempt),
        artifact=settings.artifact_dir / job_id,
    )
    made = (found.job.parent, found.job, found.attempt, staging, found.staged.parent, found.staged, found.artifact)
    for path in made:
        if _is_symlink(path):
            raise ArtifactError(f"{path} is a symbolic link and is not followed; remove it")
    for path, variable in ((found.attempt, "PREFLIGHT_STATE_DIR"), (staging, "PREFLIGHT_ARTIFACT_DIR")):
        see_that_writable(path, variable)
    return found


def next_attempt(settings: Settings, job_id: str) -> int:
    """Return the number of the next attempt of a job, as far as this disk knows."""
    return max(attempts(settings.state_dir / "jobs" / job_id), default=0) + 1


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
        raise ArtifactError(
            f"{directory} cannot be written ({error.strerror}); make room or set {variable} to a writable directory"
        ) from error


def forget_old(settings: Settings) -> None:
    """Remove what jobs left that have not been heard of for as long as Redis remembers one."""
    oldest = time.time() - settings.state_ttl
    for root in (settings.state_dir / "jobs", settings.artifact_dir / STAGING):
        for directory in root.iterdir() if root.is_dir() else ():
            try:
                newest = max(path.lstat().st_mtime for path in (directory, *directory.glob("*")))
            except OSError:
                continue  # another worker has just removed it
            if newest < oldest:
                shutil.rmtree(directory, ignore_errors=True)


def _is_symlink(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:
        return False  # not to be looked at; writing there says why
