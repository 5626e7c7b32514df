"""Seating: an idle worker sits down in the group of a job that another worker of its queue leads."""

import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from redis.exceptions import RedisError

from preflight.container.resources import detect
from preflight.errors import InvalidConfig
from preflight.redis import keys
from worker.features.groups.address import own_address
from worker.features.groups.member import Member
from worker.features.groups.messages import (
    MAX_REQUEST_BYTES,
    MEMBER_STATE,
    REQUEST,
    BadMessage,
    MemberState,
    Sealer,
    own_versions,
)
from worker.features.groups.seats import MemberSeat, Offer, read_offers
from worker.jobs.hooks import Host
from worker.jobs.worker_context import WorkerContext

IDLE_INTERVAL: Final = 2.5
"""Seconds between two looks while there is no offer: each look also marks this worker as idle for leaders."""
ADDRESS_INTERVAL: Final = 60.0
"""Seconds between two checks of a configured address by an idle worker: each may ask a name server."""
MAX_REMEMBERED: Final = 1_000
"""Most remembered attempts that have refused this worker."""


class Seating:
    """The seats that one worker takes, one after the other."""

    def __init__(self, worker: WorkerContext, host: Host) -> None:
        """Sit down at jobs of the queue of `worker`, whose `host` runs the processes."""
        self._worker = worker
        self._host = host
        self._offers: list[Offer] = []
        self._next_look = 0.0
        self._refused: set[tuple[str, int]] = set()
        self._warned = False
        self._usable = True
        self._next_address = 0.0
        self._log = structlog.get_logger("preflight")

    def look(self, *, offered: bool) -> None:
        """Read the offers, where there are any, and let leaders know now and then that this worker is idle.

        Raises `redis.exceptions.RedisError`.
        """
        self._offers = []
        if self._worker.settings.group == "off" or not (offered or time.monotonic() >= self._next_look):
            return
        self._next_look = time.monotonic() + IDLE_INTERVAL
        if not self._is_usable():  # leaders would wait for it
            return
        self._host.prepare_idle()  # a seat is taken sooner with torch imported
        found = read_offers(self._worker.connection, self._worker.queue.name, self._worker.name)
        self._offers = [offer for offer in found if (offer.job_id, offer.attempt) not in self._refused]

    def has_offer(self, *, short: bool) -> bool:
        """Return whether there is an offer that `sit` can take."""
        return any(offer.short or not short for offer in self._offers)

    def sit(self, *, short: bool) -> bool:
        """Sit down and train with the group until dismissed, where there is an offer; returns whether there was.

        `short`: only where a job cannot be trained without more members. Raises `redis.exceptions.RedisError`.
        """
        return any((offer.short or not short) and self._sit(offer) for offer in self._offers)

    def _sit(self, offer: Offer) -> bool:
        address = self._address()
        if address is None:
            return False
        resources = detect(shares=self._worker.settings.shares)
        reported = MemberState(
            address=address, versions=own_versions(), cores=resources.quota or float(resources.cores),
            memory_mb=resources.memory_bytes >> 20,
        )  # fmt: skip
        sealer = Sealer.of(self._worker.settings, offer.job_id, offer.attempt)
        seat = MemberSeat(self._worker.connection, self._worker.queue.name, offer, self._worker.name)
        sat, text = seat.sit(sealer.seal(MEMBER_STATE, reported, self._worker.name))
        self._offers = [other for other in self._offers if other != offer]
        if sat == "refused":
            self._refuse(offer)
        if sat != "taken":
            return False
        try:
            request = sealer.open(REQUEST, text, "leader", MAX_REQUEST_BYTES)
        except BadMessage as error:
            self._log.warning("seat_left", job_id=offer.job_id, message=f"the leader sent {error}")
            self._refuse(offer)
            seat.leave()
            return False
        with tempfile.TemporaryDirectory(prefix="preflight-group-", ignore_cleanup_errors=True) as directory:
            member = Member(
                seat=seat, settings=self._worker.settings, worker=self._worker.name, request=request, sealer=sealer,
                reported=reported, stop=self._worker.stop, server=self._host.server, directory=Path(directory),
            )  # fmt: skip
            self._run(member, offer)
        return True

    def _run(self, member: Member, offer: Offer) -> None:
        """Run the member in a process of its host; RQ's tools see a busy worker meanwhile."""
        structlog.contextvars.bind_contextvars(job_id=offer.job_id)
        worker_key = keys.rq_worker(self._worker.name)
        try:
            self._worker.connection.hset(worker_key, mapping={"state": "busy", keys.GROUP: offer.job_id})
            died = self._host.run(offer.job_id, member.run)
        finally:
            structlog.contextvars.unbind_contextvars("job_id")
            self._next_look = 0.0
        if died is not None:
            self._refuse(offer)  # it would end again
            self._log.error("member_died", job_id=offer.job_id, message=f"the process of a member ended: {died}")
        with suppress(RedisError):
            self._worker.connection.hdel(worker_key, keys.GROUP)

    def _refuse(self, offer: Offer) -> None:
        if len(self._refused) >= MAX_REMEMBERED:
            self._refused.clear()
        self._refused.add((offer.job_id, offer.attempt))

    def _is_usable(self) -> bool:
        """Return whether this worker has an address; a configured one may not be of this machine, or not yet."""
        if self._worker.settings.advertise_host is not None and time.monotonic() >= self._next_address:
            self._next_address = time.monotonic() + ADDRESS_INTERVAL
            self._usable = self._address() is not None
        return self._usable

    def _address(self) -> str | None:
        """Return the address of this worker; None, with one warning, where it has none."""
        try:
            address = own_address(self._worker.settings)
        except InvalidConfig as error:
            if not self._warned:
                self._log.warning("group_unusable", message=f"this worker sits down nowhere: {error.message}")
            self._warned = True
            return None
        self._warned = False
        return address
