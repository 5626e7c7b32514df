"""Records of imports in Redis: which are open, how far each is, and which process runs it.

An open import is a field of one hash, named as its data set: each name has one at a time. Its state is another key,
which outlives it for a while. The process that runs it holds its lease, as for a job.
"""

import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from preflight.redis import keys
from preflight.redis.lua import run_script
from preflight.redis.untrusted.reads import read_page, read_value

MAX_OPEN: Final = 100
MAX_RECORD_BYTES: Final = 16 << 10
NAME_BYTES: Final = 64
LEASE_MS: Final = 12_000
"""Milliseconds after which Redis itself deletes a lease that is not renewed, as for a job."""
ENDED: Final = ("finished", "refused", "cancelled")
HELD: TypeAdapter[int] = TypeAdapter(int)
RELEASED = TypeAdapter(list[int])

Status = Literal["waiting", "running", "finished", "refused", "cancelled"]
Text = Annotated[str, Field(max_length=2_000)]
Number = Annotated[int, Field(ge=0, le=2**53)]


class ImportState(BaseModel):
    """An import, or other work of a worker on a data set, and how far it is."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    import_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    kind: Literal["import", "remove", "relabel", "erase", "issues"] = "import"
    """`erase` deletes a sample, `issues` looks for wrong labels."""
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}(@[1-9][0-9]{0,5})?$")]
    """Name of the data set, perhaps with a version."""
    file: Annotated[str, Field(max_length=200)] = ""
    """The user's name of the upload."""
    stored: Annotated[str, Field(pattern=r"^([0-9a-f]{16}(\.[a-z0-9]{1,7}){0,2})?$")] = ""
    """Name of the upload in the folder of uploads."""
    bytes: Number = 0
    options: Mapping[str, Annotated[str, Field(max_length=200)]] = {}
    """Options of the import, as the query had them."""
    status: Status = "waiting"
    stage: Annotated[str, Field(max_length=40)] = "waiting"
    read: Number = 0
    refused: Number = 0
    total: Number = 0
    """Total that `read` counts up to; 0: not known."""
    rate: Annotated[float, Field(ge=0)] = 0.0
    """Samples in a second."""
    seconds_left: Annotated[float, Field(ge=0)] | None = None
    message: Text = "waits for a worker"
    """A sentence about the status."""
    reason: Annotated[str, Field(max_length=60)] | None = None
    """Reason of a refusal."""
    version: Annotated[str, Field(max_length=80)] | None = None
    """Version that the import has made, or found to be the same: `photos@2`."""
    is_new: bool | None = None
    attempts: Number = 0
    """Number of processes that have begun the import."""
    created_at: float = 0.0
    updated_at: float = 0.0
    seq: Number = 0
    """Number of the change; it grows with each."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more follows."""
        return self.status in ENDED


def new_import_id() -> str:
    """Return an id: 16 hexadecimal digits."""
    return secrets.token_hex(8)


class Imports:
    """The imports of one queue. Every method raises `redis.exceptions.RedisError` where Redis does not answer."""

    def __init__(self, connection: Redis, queue: str, ttl: int) -> None:
        """Keep states for `ttl` seconds after their last change."""
        self._connection = connection
        self._key = keys.imports(queue)
        self._ttl = ttl

    @property
    def key(self) -> str:
        """The key that exists while an import is open."""
        return self._key

    def open(self, state: ImportState) -> bool:
        """Add an import; False where another one of its data set is open."""
        now = time.time()
        self.save(state.model_copy(update={"created_at": now}))
        if self._connection.hsetnx(self._key, data_set(state), state.import_id):
            return True
        self._connection.delete(keys.import_state(state.import_id))
        return False

    def opened(self) -> list[ImportState]:
        """Return the open imports, the oldest first; remove entries that are not ours."""
        page = read_page(self._connection, self._key, 0, MAX_OPEN, name_bytes=NAME_BYTES, value_bytes=NAME_BYTES)
        found = []
        for name, value in zip(page.names[:MAX_OPEN], page.values, strict=False):
            state = self.find(value.decode("ascii", errors="replace"))
            if state is None or state.has_ended or data_set(state) != name.decode(errors="replace"):
                self._connection.hdel(self._key, name)
            else:
                found.append(state)
        return sorted(found, key=lambda state: (state.created_at, state.import_id))

    def find(self, import_id: str) -> ImportState | None:
        """Return an import; None where there is none."""
        if len(import_id) != 16 or not import_id.isalnum() or not import_id.isascii():
            return None
        try:
            stored = read_value(self._connection, keys.import_state(import_id), MAX_RECORD_BYTES)
            found = None if stored is None else ImportState.model_validate_json(stored)
        except (ValidationError, ResponseError):
            return None
        return found if found is not None and found.import_id == import_id else None

    def save(self, state: ImportState) -> ImportState:
        """Write a state, as the next of its import."""
        found = state.model_copy(update={"seq": state.seq + 1, "updated_at": time.time()})
        self._connection.set(keys.import_state(state.import_id), found.model_dump_json(), ex=self._ttl)
        return found

    def end(self, state: ImportState) -> ImportState:
        """Write the last state of an import, and close it."""
        found = self.save(state)
        self._connection.hdel(self._key, data_set(state))
        return found

    def hold(self, import_id: str, owner: str) -> bool:
        """Take or renew the lease of an import; False where somebody else has it."""
        held = run_script(
            self._connection, "maintenance/renew_place", HELD, keys=[keys.lease(import_id)], args=[owner, LEASE_MS]
        )
        return bool(held)

    def is_held(self, import_id: str) -> bool:
        """Whether somebody runs an import."""
        return bool(self._connection.exists(keys.lease(import_id)))

    def release(self, import_id: str, owner: str) -> None:
        """Give the lease back."""
        run_script(self._connection, "maintenance/release", RELEASED, keys=[keys.lease(import_id)], args=[owner])

    def ask_to_cancel(self, import_id: str) -> None:
        """Ask the process that runs an import, or is about to, to stop it."""
        self._connection.hset(keys.cancel(import_id), "at", str(time.time()))
        with suppress(NoPermissionError):  # the web service may only set it; a worker deletes it
            self._connection.expire(keys.cancel(import_id), self._ttl)

    def forget_cancellation(self, import_id: str) -> None:
        """Remove the request to stop, once it is done."""
        self._connection.delete(keys.cancel(import_id))

    def is_cancelled(self, import_id: str) -> bool:
        """Whether an import was asked to stop."""
        return bool(self._connection.exists(keys.cancel(import_id)))


def data_set(state: ImportState) -> str:
    """Return the name of the data set without a version."""
    return state.name.partition("@")[0]
