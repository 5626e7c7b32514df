"""Group stage: gather other workers for a job that asks for them."""

import time
from contextlib import suppress
from typing import Final

from redis.exceptions import RedisError

from calibration.choose import PlanChoice
from preflight.container.resources import Resources
from preflight.contract.lengths import LEAST_SHARE
from preflight.contract.spec import TrainSpec
from preflight.errors import GroupShort, InvalidConfig
from preflight.wire import TrainJob
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import checksum
from worker.jobs.context import JobContext
from worker.jobs.group.address import own_address
from worker.jobs.group.gathering import gather as await_members
from worker.jobs.group.group import Group
from worker.jobs.group.group_events import GroupEvents
from worker.jobs.group.leader import Leader
from worker.jobs.group.messages import GroupRequest, Sealer, own_versions
from worker.jobs.group.roster import Roster

MIN_GATHER_SECONDS: Final = 0.5
"""For elastic's rendezvous, which waits no shorter."""


def require_group(context: JobContext, job: TrainJob) -> None:
    """Have a job that demands several workers go on to one that leads groups; raises `GroupShort`.

    It is held while the queue is empty, at most as long as a group would be gathered: else it would come back at once.
    """
    if context.seats is None or context.settings.group == "on" or job.group.min == 1:
        return
    deadline = time.monotonic() + context.settings.gather_seconds
    while time.monotonic() < deadline:
        context.control.check()
        with suppress(RedisError):
            if context.seats.waiting():
                break
        time.sleep(0.5)
    message = (
        f"the job demands {job.group.min} workers, but this one trains alone (PREFLIGHT_GROUP is off); "
        "it is at the end of its queue for another"
    )
    context.emit("group_short", {"workers": 1, "wanted": job.group.min, "message": message})
    raise GroupShort(message)


def gather(
    context: JobContext, job: TrainJob, spec: TrainSpec, choice: PlanChoice, resources: Resources, store: DatasetInfo
) -> Group:  # fmt: skip
    """Return the group that trains the job: its members have sat down. A job that asks for no others trains alone.

    Raises:
        GroupShort: fewer workers sat down than the job demands; it goes back to its queue.
    """
    size = job.group
    if size.max == 1:
        return Group()
    if context.seats is None or context.settings.group == "off":
        where = "this command trains alone" if context.seats is None else "PREFLIGHT_GROUP is off"
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
        context=context, seats=context.seats, address=address, resources=resources, sealer=sealer,
        request=GroupRequest(
            leader=context.worker, spec=spec, plan=choice.plan, least=size.min,
            most=max(size.min, min(size.max, spec.batch_size // LEAST_SHARE)), gather_seconds=seconds,
            normalization=(store.mean, store.std), fine_tuning=job.init_from is not None,
        ),
        roster=Roster(sealer, own_versions(), checksum(store, context.digests)),
        events=GroupEvents(context=context, leader=context.worker, resources=resources),
    )  # fmt: skip
    try:
        await_members(leader, context.settings.gather_seconds)
    except BaseException:
        leader.close()
        raise
    return leader
