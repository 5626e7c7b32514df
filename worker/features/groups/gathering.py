"""Gathering: a leader waits for the members of its group."""

import time
from typing import Final

from worker.features.groups.decisions import has_gathered
from worker.features.groups.leader import Leader

INTERVAL: Final = 0.25
"""Seconds between two looks at the seats."""


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
    roster = leader.roster
    return has_gathered(
        leader.request, leader.led, there=len(roster.available()) + 1, settled=roster.are_settled(),
        refused=len(roster.refused), late=late,
    )  # fmt: skip
