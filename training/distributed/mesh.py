"""Connection of the ranks of a round, each with each; one gives way where two of them cannot reach each other."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import Store

from preflight.errors import ChildFailed
from training.distributed.ranks import connect

REPORT_SECONDS: Final = 3.0
"""Seconds to wait for the others' reports, beyond the time to connect: all began at once."""
CONNECTED, FAILED = b"connected", b"failed"


def connect_all(store: Store, address: str, rank: int, names: Sequence[str], timeout_seconds: float) -> None:
    """Connect the ranks, and return once each has connected with each.

    Args:
        store: store of the round.
        address: address of this rank, to which everything binds.
        rank: number of this rank.
        names: names of all ranks, the leader's first.
        timeout_seconds: longest wait of each call between them.

    Raises:
        RuntimeError: another rank has ended, or gives way.
        ChildFailed: this rank gives way, as it and others cannot reach each other.
    """
    try:
        connect(store, address, rank, len(names), timeout_seconds)
    except RuntimeError as error:
        store.set(_key(rank), FAILED.decode())
        failed = _failed(_reports(store, len(names), REPORT_SECONDS))
        if gives_way(rank, failed):
            others = ", ".join(names[each] for each in failed if each != rank)
            raise ChildFailed(
                f"it at {address} and {others} have not connected within {timeout_seconds:g} s; "
                "open all ports between workers, or set PREFLIGHT_ADVERTISE_HOST"
            ) from error
        raise
    store.set(_key(rank), CONNECTED.decode())
    if _failed(_reports(store, len(names), timeout_seconds + REPORT_SECONDS)):
        raise RuntimeError("gloo: two other ranks have not connected")


def gives_way(rank: int, failed: Sequence[int]) -> bool:
    """Whether a rank leaves the group: it is the last of those that have not connected, and not the leader.

    One that has ended reports nothing, so that nobody gives way for it.
    """
    return len(failed) > 1 and rank == max(failed) and rank > 0


def _key(rank: int) -> str:
    return f"mesh/{rank}"


def _reports(store: Store, ranks: int, seconds: float) -> list[bytes]:
    """Return the report of each rank; raises `DistError` where one reports nothing within `seconds`."""
    keys = [_key(rank) for rank in range(ranks)]
    store.wait(keys, timedelta(seconds=seconds))
    return [store.get(key) for key in keys]


def _failed(reports: Sequence[bytes]) -> list[int]:
    return [rank for rank, report in enumerate(reports) if report == FAILED]
