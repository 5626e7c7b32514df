"""A member of a group: the process of a worker that has a seat. It holds no fence, and writes nothing of the job."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

import structlog
from redis.exceptions import RedisError

from preflight.container.resources import detect
from preflight.errors import PreflightError
from preflight.files.journal import Record
from preflight.files.locks import Held, share
from preflight.redis.retry import PERMANENT_ERRORS, REDIS
from training.catalog.names import stored_dataset, stored_path
from training.data import prepare_child
from training.data.dataset_info import DatasetInfo, read_info
from training.data.dataset_store import checksum
from training.data.prepare_child import PrepareRequest
from training.group import MODULE as GROUP_MODULE
from training.group import Seat
from training.loop.child import REQUEST as TRAINING_REQUEST
from training.loop.child import TrainingRequest
from training.process.child import Child
from training.process.fork_server.client import ForkServer
from training.process.launch import environment_for
from training.process.runner import TICK_SECONDS, read_to_end, run_child
from training.system.digests import Digests
from worker.admission.limits import require_samples_within_limit
from worker.broker.fencing import LEASE_MS
from worker.config.settings import Settings, export_environment, job_environment
from worker.features.groups.messages import (
    MEMBER_STATE,
    ORDER,
    BadMessage,
    Call,
    GroupRequest,
    Leave,
    MemberState,
    Replayed,
    Sealer,
)
from worker.features.groups.seats import MemberSeat
from worker.jobs.stages import fetch_child
from worker.state.control import StopSignal

BEAT_INTERVAL: Final = 1.0
"""Seconds between two beats of a member that trains."""
WAIT_INTERVAL: Final = 0.25
"""Seconds between two beats of any other member: it prepares, waits for a call, or is about to leave."""
LINGER_SECONDS: Final = 2.0
"""Seconds for which a member that is asked to stop still trains: its leader may be stopping, too, and saves with it."""
LEASE_SECONDS: Final = LEASE_MS / 1000
"""Seconds without a sign of the leader after which a member leaves: another worker takes the job over then."""


class Dismissed(Exception):
    """The member has to leave: the leader orders it, the group is over, or the leader is silent."""


class _Called(Exception):
    """A new call of the leader has come."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One seat, from sitting down to leaving."""

    seat: MemberSeat
    settings: Settings
    worker: str
    request: GroupRequest
    sealer: Sealer
    reported: MemberState
    stop: StopSignal
    server: ForkServer | None
    """Server that forks the training process; None: the process is a fresh interpreter."""
    directory: Path
    """Directory for the files of the member's processes; the caller removes it."""
    call: Call | None = None
    """The newest call of the leader; None: none has come yet."""
    held: Held | None = None
    """Lock of the data set's store."""
    _next: float = 0.0
    _heard: float = field(default_factory=time.monotonic)
    """Monotonic time of the last beat that found the leader alive."""
    _leave_at: float | None = None
    """Monotonic time at which it leaves, as the worker was asked to stop; None: it was not."""

    def run(self) -> None:
        """Train with the group until dismissed.

        Raises:
            Interrupted: the worker was asked to stop.
        """
        log = structlog.get_logger("preflight")
        log.info("seat_taken", message=f"this worker joins the group of {self.request.leader}")
        try:
            self._train_along(self._prepare())
        except Dismissed as end:
            log.info("seat_left", message=f"this worker is free again: {end}")
        finally:
            try:
                self.seat.leave()
            except RedisError as error:
                REDIS.note_failure(error, "leave the group")

    def _prepare(self) -> DatasetInfo:
        """Return the data set and report that it is ready; if it cannot be prepared, wait to be dismissed."""
        try:
            info = self._dataset()
            require_samples_within_limit(self.request.spec, info.train_count, self.settings)
            data = checksum(info, Digests(alive=self._check))
        except PreflightError as error:
            self._say(replace(self.reported, state="failed", why=error.message[:1_000]))
            self._wait()
        self._say(replace(self.reported, state="ready", data=data))
        return info

    def _dataset(self) -> DatasetInfo:
        name, settings = self.request.spec.dataset, self.settings
        if settings.dataset_url is not None and "@" in name and stored_path(name, settings.data_dir) is None:
            run_child(
                fetch_child.MODULE, fetch_child.REQUEST.dump_json(fetch_child.FetchRequest(dataset=name)),
                self.directory, export_environment(settings, "dataset_url", "data_dir", "dataset_cache_gb"),
                task="data fetch", check=self._check,
            )  # fmt: skip
        found = stored_dataset(name, settings.data_dir, settings.cache_dir)
        if found is not None:
            self.held = share(found.path)
            return found
        request = PrepareRequest(
            dataset=name, data_dir=settings.data_dir, cache_dir=settings.cache_dir, download=True
        )  # fmt: skip
        done = run_child(
            prepare_child.MODULE, prepare_child.REQUEST.dump_json(request), self.directory,
            job_environment(settings), task="data preparation", check=self._check,
        )  # fmt: skip
        return read_info(Path(str(done["path"])))

    def _train_along(self, store: DatasetInfo) -> NoReturn:
        """Follow one call after the other; raises `Dismissed`, `Interrupted`."""
        while True:
            try:
                if self.call is not None:
                    self._follow(self.call, store)
                self._wait()
            except _Called:
                continue

    def _follow(self, call: Call, store: DatasetInfo) -> None:
        """Train until the process ends; a failure is reported, and the leader decides. Raises `_Called`."""
        self._say(replace(self.reported, state="starting", call=call.number, why=""))
        request, plan = self.request, self.request.plan
        training = TrainingRequest(
            spec=request.spec, plan=plan, store=store.path, facts={}, artifact=self.directory / "model",
            max_parameters=self.settings.max_parameters, seat=self._seat(call), normalization=request.normalization,
            fine_tuning=request.fine_tuning, share=detect(shares=self.settings.shares).share,
        )  # fmt: skip
        environment = environment_for(plan, job_environment(self.settings))
        try:
            with Child(
                GROUP_MODULE, TRAINING_REQUEST.dump_json(training), self.directory, environment, task="training",
                shares=self.settings.shares, server=self.server,
            ) as child:  # fmt: skip
                read_to_end(child, self._check, self._on_record)
        except PreflightError as error:
            self._say(replace(self.reported, state="lost", why=error.message[:1_000]))
        else:
            self._say(replace(self.reported, state="ready"))

    def _on_record(self, record: Record) -> None:
        if record.kind == "connecting":
            self._say(replace(self.reported, state="training"))

    def _seat(self, call: Call) -> Seat:
        request = self.request
        return Seat(
            name=self.worker, leader=False, address=self.reported.address, endpoint=(call.host, call.port),
            secret=self.sealer.secret(call.nonce), least=request.least, most=request.most,
            gather_seconds=request.gather_seconds, measure=call.measure, wire=call.wire,
            awaited=call.awaited,
        )  # fmt: skip

    # --- beats

    def _say(self, reported: MemberState) -> None:
        self.reported, self._next = reported, 0.0

    def _wait(self) -> NoReturn:
        """Wait for a call; raises `_Called`, `Dismissed`, `Interrupted`."""
        while True:
            self._check()
            time.sleep(TICK_SECONDS / 2)

    def _check(self) -> None:
        """Send a beat if one is due, and obey the leader's order; raises as `_wait`."""
        self._check_stop()
        if time.monotonic() < self._next:
            return
        trains = self.reported.state == "training" and self._leave_at is None
        self._next = time.monotonic() + (BEAT_INTERVAL if trains else WAIT_INTERVAL)
        try:
            kept, order, heard_s = self.seat.beat(self.sealer.seal(MEMBER_STATE, self.reported, self.worker))
            REDIS.note_answer()
        except PERMANENT_ERRORS:
            raise
        except RedisError as error:
            REDIS.note_failure(error, "keep the seat")
            kept, order, heard_s = "lost", "", 0.0
        if kept == "over":
            raise Dismissed("the group is over")
        if kept == "seated" and heard_s < LEASE_SECONDS:
            self._heard = time.monotonic()
        self._obey(order)
        self._require_leader(kept)

    def _check_stop(self) -> None:
        """Raise `Interrupted` where the worker was asked to stop: at once, unless it trains."""
        if not self.stop():
            return
        if self._leave_at is None:
            self._leave_at = time.monotonic() + LINGER_SECONDS
            self._next = 0.0
        if self.reported.state != "training" or time.monotonic() >= self._leave_at:
            self.stop.check()

    def _require_leader(self, kept: str) -> None:
        """Raise `Dismissed` if the leader is silent; while Redis is away, a training shows that its leader lives."""
        silent = time.monotonic() - self._heard > LEASE_SECONDS
        if silent and (kept == "seated" or self.reported.state != "training"):
            raise Dismissed(f"its leader was not heard for {LEASE_SECONDS:g} s")

    def _obey(self, text: str) -> None:
        if not text:
            return
        try:
            order = self.sealer.open(ORDER, text, self.worker)
        except Replayed:
            return
        except BadMessage as error:
            raise Dismissed(f"the leader sent {error}") from error
        if isinstance(order, Leave):
            raise Dismissed(order.why)
        if order != self.call and self.reported.state in ("ready", "starting", "training", "lost"):
            self.call = order
            raise _Called
