"""Pending extras: work that follows a result, in a file next to the attempt's spool until it is done."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog
from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT
from preflight.files.atomic_files import read_text, write_atomically
from preflight.wire import TrainResult
from worker.state.paths import attempts

FILE_NAME: Final = "extras.json"
MAX_TRIES: Final = 3
"""Times that an extra is begun, where it fails for a reason that may pass or its process dies."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Extras:
    """Work that follows the result of an attempt."""

    result: TrainResult
    """The result, with the fields of the extras done so far."""
    left: tuple[str, ...]
    """Names of the extras still to do, in order: an upload includes the files of earlier ones."""
    requests: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Request of each extra, by its name."""
    tries: int = 0
    """Times that the first of `left` was begun."""

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, kept: object) -> object:
        """Read a file of 0.27.0 or before, which has the requests as fields `onnx` and `report`, null where none is."""
        if not isinstance(kept, dict) or "requests" in kept:
            return kept
        fields = {name: value for name, value in kept.items() if name in ("result", "left", "tries")}
        requests = {name: value for name, value in kept.items() if name not in fields and value is not None}
        return {**fields, "requests": requests}


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class PendingExtras:
    """Extras, and the fence under which their events are published."""

    extras: Extras
    rq_id: str
    owner: str
    """The name of the execution that has ended."""
    request: str
    """Digest of the job's request."""


RECORD: Final = TypeAdapter(PendingExtras)


class ExtrasStore:
    """Keeps the extras of an attempt. This class keeps nothing: without Redis no other process would do them later."""

    max_tries = 1

    def save(self, extras: Extras) -> bool:  # noqa: ARG002 - the signature of all stores
        """Keep the extras that are left; return whether another process will find them."""
        return False


class ExtrasFile(ExtrasStore):
    """Keeps the extras in the directory of their attempt."""

    max_tries = MAX_TRIES

    def __init__(self, attempt: Path, *, rq_id: str, owner: str, request: str) -> None:
        self._path = attempt / FILE_NAME
        self._rq_id = rq_id
        self._owner = owner
        self._request = request

    def save(self, extras: Extras) -> bool:
        """Keep the extras that are left, on disk on return; return False, and log why, where that failed."""
        if not extras.left:
            self._path.unlink(missing_ok=True)
            return False
        pending = PendingExtras(extras=extras, rq_id=self._rq_id, owner=self._owner, request=self._request)
        try:
            write_atomically(self._path, RECORD.dump_json(pending))
        except OSError as error:
            structlog.get_logger("preflight").warning(
                "extras_not_saved",
                path=str(self._path),
                message=f"a kill before the end will lose report and uploads: {error.strerror or error}",
            )
            return False
        return True


def pending_attempts(job: Path) -> Iterator[int]:
    """Yield the numbers of the attempts with pending extras in the directory of a job, newest first."""
    return (number for number in reversed(attempts(job)) if (job / str(number) / FILE_NAME).is_file())


def read_pending(job: Path, attempt: int) -> PendingExtras | None:
    """Return the pending extras of an attempt; None where there are none, or ones of another version."""
    try:
        return RECORD.validate_json(read_text(job / str(attempt) / FILE_NAME))
    except (OSError, ValidationError):
        return None
