"""Dataset pin: the version of an imported data set that all attempts of a job use."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from redis import Redis
from redis.exceptions import RedisError

from preflight.files.atomic_files import read_text, write_atomically
from preflight.redis import keys
from preflight.redis.retry import retry_until_available
from preflight.redis.untrusted.reads import read_value
from training.catalog.version import REFERENCE

MAX_BYTES: Final = 128
FILE: Final = "dataset"
"""Name of the file in the directory of a job."""


class DatasetPin:
    """Keeps the version on this disk, in the directory that the attempts of a job share."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def get(self) -> str | None:
        """Return the version that an earlier attempt used; None: none is kept."""
        with suppress(OSError, UnicodeError):
            return valid(read_text(self._path, MAX_BYTES).decode())
        return None

    def put(self, reference: str) -> None:
        """Store the version."""
        with suppress(OSError):  # the checkpoint has it, too
            write_atomically(self._path, reference.encode())


class RedisDatasetPin(DatasetPin):
    """Keeps the version in Redis, too: the next attempt may run elsewhere."""

    def __init__(
        self, directory: Path, connection: Redis, job_id: str, ttl: int, heartbeat: Callable[[], None]
    ) -> None:
        super().__init__(directory)
        self._connection = connection
        self._key = keys.dataset(job_id)
        self._ttl = ttl
        self._heartbeat = heartbeat

    def get(self) -> str | None:
        """Return the version that an earlier attempt used, once Redis is available."""
        stored = retry_until_available(
            lambda: read_value(self._connection, self._key, MAX_BYTES), "read the version of the data set",
            self._heartbeat,
        )  # fmt: skip
        return (valid(stored.decode(errors="replace")) if stored is not None else None) or super().get()

    def put(self, reference: str) -> None:
        """Store the version."""
        super().put(reference)
        try:
            self._connection.set(self._key, reference, ex=self._ttl)
        except RedisError as error:
            structlog.get_logger("preflight").warning(
                "dataset_save_failed", message=f"the version of the data set is not kept for later attempts: {error}"
            )


def valid(text: str) -> str | None:
    """Return a reference with a version, None for any other text."""
    found = REFERENCE.fullmatch(text.strip())
    return found[0] if found and found[2] else None
