"""The process of one import: `preflight data add` for an upload, with its progress in Redis.

A killed one leaves the decoded samples and an open record, from which the next one resumes. Arguments: the id, the name
of the worker, the number of processes that decode, the priority, and the id of the parent with which it dies.
"""

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from redis.exceptions import RedisError

from preflight.errors import Cancelled, OutOfMemory, PreflightError, TimedOut
from preflight.redis.connection import open_redis
from preflight.redis.retry import retry_until_available
from preflight.wire import JOB_TIMEOUT
from training.importing.erasing import Erasure
from training.importing.run import Progress
from training.process.child_main import die_with_parent
from training.process.interrupts import release, set_stop_handler
from training.process.priority import lower_session, use_idle_priority
from worker.config.settings import Settings, load
from worker.events.logging import configure
from worker.imports.records import Imports, ImportState
from worker.imports.uploads import Uploads, open_uploads
from worker.jobs.local.erasing import erase_local
from worker.jobs.local.import_options import import_options
from worker.jobs.local.importing import Asked, import_local, relabel_local, remove_local
from worker.queue.imports.room import IDLE, limit_memory
from worker.queue.loop.datasets import DatasetsChore
from worker.state.control import Interrupted, StopSignal

if TYPE_CHECKING:
    from training.catalog.version import Version

T = TypeVar("T")

BEAT_SECONDS: Final = 1.0
"""Seconds between two renewals of the lease."""
TELL_SECONDS: Final = 0.5
"""Seconds between two states that differ in progress only."""
MAX_ATTEMPTS: Final = 4
"""Processes that may die at one import before it is refused."""
INSTEAD: Final = {
    kind: f"use `preflight data {command}`"
    for kind, command in (
        ("import", "add"), ("remove", "remove"), ("relabel", "relabel"), ("erase", "erase"), ("issues", "issues")
    )
}  # fmt: skip
"""Remedy where a process with limited memory cannot do the work, by kind of import."""
PAUSED: Final = "the worker stopped; the import resumes where it was"


class Superseded(Exception):
    """Another process runs the import."""


class ImportRun:
    """One import in this process."""

    def __init__(
        self, imports: Imports, uploads: Uploads, settings: Settings, stop: StopSignal, owner: str,
        publish: Callable[[], None],
    ) -> None:  # fmt: skip
        """Run an import of `imports` as `owner`, until `stop`; `publish` lists this worker's data sets in Redis."""
        self._imports, self._uploads, self._settings, self._stop = imports, uploads, settings, stop
        self._owner, self._publish = owner, publish
        self._began = time.monotonic()
        self._next_beat = self._next_tell = 0.0

    def run(self, import_id: str, processes: int) -> bool:
        """Run an import to its end; returns whether it has ended, by this process or another."""
        if not self._retry(partial(self._imports.hold, import_id, self._owner)):
            return True
        state = self._retry(partial(self._imports.find, import_id))
        if state is None or state.has_ended:
            self._retry(partial(self._imports.release, import_id, self._owner))
            return True
        if state.attempts >= MAX_ATTEMPTS:
            why = f"{MAX_ATTEMPTS} processes died of it, the last one perhaps for memory; {INSTEAD[state.kind]}"
            self._end(state, status="refused", reason="child_failed", message=why)
            return True
        self._state = self._save(state, status="running", stage="begins", attempts=state.attempts + 1, message="")
        try:
            found = self._do(processes)
            self._end(self._state, **found)
        except Superseded:
            return True
        except Interrupted:
            self._save(self._state, status="waiting", stage="waiting", attempts=state.attempts, message=PAUSED)
            self._retry(partial(self._imports.release, import_id, self._owner))
            return False
        return True

    def _do(self, processes: int) -> dict[str, object]:
        """Do the work of the import's kind; return the fields of the last state."""
        try:
            match self._state.kind:
                case "remove":
                    found = self._remove()
                case "erase":
                    found = self._erase()
                case "issues":
                    found = self._find_issues(processes)
                case "relabel":
                    found = _ready(self._relabel(), is_new=True)
                case "import":
                    version, is_new = self._import(processes)
                    found = _ready(version, is_new=is_new)
        except Cancelled:
            self._discard()
            return {"status": "cancelled", "stage": "cancelled", "message": "cancelled; nothing is left behind"}
        except (MemoryError, OutOfMemory):
            return _refused("out_of_memory", f"it needs more than 1 GiB of memory; {INSTEAD[self._state.kind]}")
        except PreflightError as error:
            return _refused(error.reason, self._readable(error.message))
        except (Interrupted, Superseded, RedisError):
            raise
        except Exception as error:
            structlog.get_logger("preflight").exception("import_failed", import_id=self._state.import_id)
            return _refused("internal_error", f"{type(error).__name__}: {error}; please report it")
        self._discard()
        return {"status": "finished", **found}

    def _discard(self) -> None:
        """Remove the upload."""
        if self._state.stored:
            self._uploads.remove(self._state.stored)

    def _readable(self, message: str) -> str:
        """Return a message with the user's name of the upload in place of its path here."""
        stored = re.escape(self._state.stored)
        shown = self._state.file or self._state.name
        return re.sub(rf"\S*{stored}", lambda _: shown, message) if stored else message

    def _import(self, processes: int) -> "tuple[Version, bool]":
        options = import_options({name: _value(name, text) for name, text in self._state.options.items()})
        self._tell(Progress(stage="unpacking"))
        asked = Asked(
            self._state.name, self._state.file or self._state.name, options,
            fetch=partial(self._uploads.fetch, self._state.stored), upload=self._state.import_id, processes=processes,
        )  # fmt: skip
        return import_local(asked, self._settings, self._tell, self.check)

    def _remove(self) -> dict[str, object]:
        gone = remove_local(self._state.name, self._settings, force=False)
        named = ", ".join(version.reference for version in gone) or self._state.name
        return {"stage": "removed", "message": f"removed {named}"}

    def _erase(self) -> dict[str, object]:
        options = self._state.options
        asked = Erasure(self._state.name, options["sha256"], (int(options["sample"]),), options.get("by", "http"))

        def keep_alive() -> None:
            with suppress(Cancelled):  # a deletion that has begun is completed: some versions have changed already
                self.check()

        return {"stage": "deleted", "message": str(erase_local(asked, self._settings, keep_alive))}

    def _find_issues(self, processes: int) -> dict[str, object]:
        from worker.jobs.local.issues import Search, issues_local

        self._tell(Progress(stage="begins to train"))
        found = issues_local(Search(self._state.name, threads=processes), self._settings, self._tell, self.check)
        said = f"{found.estimated:,} of {found.samples:,} labels look wrong"
        return {"stage": "found", "version": found.dataset, "message": said}

    def _relabel(self) -> "Version":
        with TemporaryDirectory() as work:
            path = self._uploads.fetch(self._state.stored, Path(work), self.check)
            text = path.read_text()
        return relabel_local(self._state.name, text, self._settings, self._state.options.get("by", "http"))

    def check(self) -> None:
        """Keep the import alive.

        Raises:
            Interrupted: the worker was asked to stop.
            Cancelled, TimedOut: the import has to end.
            Superseded: another process runs it.
        """
        self._stop.check()
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_SECONDS
        if now - self._began > JOB_TIMEOUT:
            raise TimedOut(f"the import took more than {JOB_TIMEOUT / 3600:g} h; use `preflight data add`")
        try:
            is_held = self._imports.hold(self._state.import_id, self._owner)
            is_cancelled = self._imports.is_cancelled(self._state.import_id)
        except RedisError:
            return  # the import continues; the next beat may reach Redis
        if not is_held:
            raise Superseded
        if is_cancelled:
            raise Cancelled("cancelled on request")

    def _tell(self, progress: Progress) -> None:
        now = time.monotonic()
        self.check()
        if progress.stage == self._state.stage and now < self._next_tell:
            return
        self._next_tell = now + TELL_SECONDS
        found = {
            "stage": progress.stage, "read": progress.read, "refused": progress.refused, "total": progress.total,
            "rate": progress.rate, "seconds_left": progress.seconds_left,
        }  # fmt: skip
        try:
            self._state = self._imports.save(self._state.model_copy(update=found))
        except RedisError:
            return

    def _save(self, state: ImportState, **fields: object) -> ImportState:
        return self._retry(lambda: self._imports.save(state.model_copy(update=fields)))

    def _end(self, state: ImportState, **fields: object) -> None:
        if fields.get("status") == "finished":
            self._retry(self._publish)
        self._retry(lambda: self._imports.end(state.model_copy(update=fields)))
        self._retry(partial(self._imports.forget_cancellation, state.import_id))
        self._retry(partial(self._imports.release, state.import_id, self._owner))

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_until_available(action, "record an import", self._stop.check)


def _ready(version: "Version", *, is_new: bool) -> dict[str, object]:
    said = f"{version.samples:,} samples" if is_new else f"{version.reference} has this content already"
    match version.report:
        case {"refused": {"samples": int(refused)}} if refused and is_new and "revised" not in version.report:
            said += f", {refused:,} refused"
    return {"stage": "ready", "version": version.reference, "is_new": is_new, "message": said}


def _refused(reason: str, message: str) -> dict[str, object]:
    return {"status": "refused", "stage": "refused", "reason": reason, "message": message[:2_000]}


def _value(name: str, text: str) -> object:
    return text in ("true", "1", "on", "yes") if name == "keep_duplicates" else text


def main() -> None:
    """Run the import that the arguments name; exit code `EX_TEMPFAIL`: it is resumed later."""
    import_id, worker, decoders, priority, parent = sys.argv[1:]
    die_with_parent(int(parent))
    if priority == IDLE:
        use_idle_priority()
        lower_session()
    limit_memory()
    stop = StopSignal()
    set_stop_handler(stop.note)
    release()
    settings = load()
    configure(settings.log_format, settings.log_level, sys.stdout, settings.secrets)
    connection = open_redis(settings.redis_url)
    run = ImportRun(
        Imports(connection, settings.queue, settings.state_ttl), open_uploads(settings), settings, stop,
        f"{worker}/import.{os.getpid()}", DatasetsChore(connection, settings.queue, worker, settings).step,
    )  # fmt: skip
    try:
        ended = run.run(import_id, int(decoders))
    except Interrupted:  # while Redis is away
        ended = False
    sys.exit(0 if ended else os.EX_TEMPFAIL)


if __name__ == "__main__":
    main()
