"""Group stage: gather other workers for a job that asks for them."""

import time
from contextlib import suppress
from typing import Final

from redis.exceptions import RedisError

from preflight.contract.lengths import LEAST_SHARE
from preflight.errors import GroupShort, InvalidConfig
from preflight.wire import TrainJob
from training.data.dataset_store import checksum
from worker.features.groups.address import own_address
from worker.features.groups.gathering import gather as await_members
from worker.features.groups.group_events import GroupEvents
from worker.features.groups.leader import Leader
from worker.features.groups.messages import GroupRequest, Sealer, own_versions
from worker.features.groups.roster import Roster
from worker.features.groups.seats import LeaderSeats
from worker.jobs.context import JobContext
from worker.jobs.stages.group import Group
from worker.jobs.stages.training import TrainingRun

MIN_GATHER_SECONDS: Final = 0.5
"""Shortest time that elastic's rendezvous can wait, in seconds."""
GROUP_TTL: Final = 120
"""Seconds for which Redis keeps a group after its leader's last command."""


def require_leader(context: JobContext, job: TrainJob) -> None:
    """Put a job that demands several workers back into its queue if this worker leads no groups; raises `GroupShort`.

    The job is held while the queue is empty, at most as long as a group would be gathered: otherwise it would come back
    at once.
    """
    seats = _seats(context)
    if seats is None or context.settings.group == "on" or job.group.min == 1:
        return
    deadline = time.monotonic() + context.settings.gather_seconds
    while time.monotonic() < deadline:
        context.control.check()
        with suppress(RedisError):
            if seats.waiting():
                break
        time.sleep(0.5)
    message = (
        f"the job demands {job.group.min} workers, but this one trains alone (PREFLIGHT_GROUP is off); "
        "it is at the end of its queue for another"
    )
    context.emit("group_short", {"workers": 1, "wanted": job.group.min, "message": message})
    raise GroupShort(message)


def _seats(context: JobContext) -> LeaderSeats | None:
    """Return the seats that an attempt may offer; None: a job without Redis."""
    fence = context.fence
    return None if fence is None else LeaderSeats(fence.connection, context.settings.queue, fence, ttl=GROUP_TTL)


def gather(training: TrainingRun) -> Group | None:
    """Return the group that trains the job, once members have sat down; None: the job asks for no others.

    Raises:
        GroupShort: fewer workers sat down than the job demands; it goes back to its queue.
    """
    context, size, seats = training.context, training.job.group, _seats(training.context)
    if size.max == 1:
        return None
    if seats is None or context.settings.group == "off":
        where = "this command trains alone" if seats is None else "PREFLIGHT_GROUP is off"
        context.warn(f"workers is up to {size.max}, but {where}; one worker trains the job")
        return Group()
    try:
        address = own_address(context.settings)
    except InvalidConfig as error:
        context.warn(f"{error.message}; one worker trains the job")
        if size.min > 1:
            context.emit("group_short", {"workers": 1, "wanted": size.min, "message": error.message})
            raise GroupShort(error.message) from error
        return Group()
    sealer = Sealer.of(context.settings, context.job_id, context.attempt)
    seconds = max(MIN_GATHER_SECONDS, context.settings.gather_seconds)
    leader = Leader(
        context=context, seats=seats, address=address, resources=training.resources, sealer=sealer,
        request=GroupRequest(
            leader=context.worker, spec=training.spec, plan=training.plan, least=size.min,
            most=max(size.min, min(size.max, training.spec.batch_size // LEAST_SHARE)), gather_seconds=seconds,
            normalization=(training.store.mean, training.store.std), fine_tuning=training.job.init_from is not None,
        ),
        roster=Roster(sealer, own_versions(), checksum(training.store, context.digests)),
        events=GroupEvents(context=context, leader=context.worker, resources=training.resources),
    )  # fmt: skip
    try:
        await_members(leader, context.settings.gather_seconds)
    except BaseException:
        leader.close()
        raise
    return leader
