"""Gathering: a leader waits until its group is there."""

import time
from typing import Final

from worker.jobs.group.leader import Leader

INTERVAL: Final = 0.25
"""Seconds between two looks at who sits."""


def gather(leader: Leader, seconds: float) -> None:
    """Offer seats until all are taken, nobody else may come, or `seconds` are over.

    Raises:
        GroupShort: fewer sat down than the job demands.
        Interrupted, Cancelled, Superseded: from the job's control.
    """
    began = time.monotonic()
    while not _has_gathered(leader, time.monotonic() - began >= seconds):
        leader.context.control.check()
        time.sleep(INTERVAL)
    if len(leader.roster.available()) + 1 < leader.request.least:
        leader.give_up(f"it waited {time.monotonic() - began:.0f} s for others")


def _has_gathered(leader: Leader, late: bool) -> bool:
    leader.lead()
    there, request, led = len(leader.roster.available()) + 1, leader.request, leader.led
    more_may_come = led.idle > len(leader.roster.refused)
    enough = there >= request.least and leader.roster.are_settled()
    if late or (enough and (there == request.most or not more_may_come)):
        return True
    # Two short groups would wait for each other: the younger one gives way, and its worker sits down at the older.
    return there < request.least and led.older_is_short and not more_may_come
