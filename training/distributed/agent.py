"""The child of a training with a seat: `python -m training.distributed.agent REQUEST`.

It holds the seat: it meets the other agents, forks one rank, and forks it again from the last checkpoint when the group
changes. The leader's rank writes the records of a training (training/loop/child.py); in addition there are `listening`
with the port of the leader's store, `connecting` of a member once torch is imported, and for both `group` each time
ranks have formed.
"""

import ctypes
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final, NoReturn

from preflight.cli.interrupts import raised_safely
from preflight.contract.lengths import require_shares
from preflight.errors import ChildFailed, ChildStopped, GroupShort, InvalidConfig
from preflight.files.journal import JournalWriter
from training.group import MODULE, Seat
from training.loop.child import REQUEST, TrainingRequest
from training.process.child_main import end_like, serve_request
from training.process.interrupts import ignore_stop_signals, set_stop_handler

__all__ = ["MODULE", "main"]

STOPPED: Final = "the group's process was stopped by a signal"


def hold_seat(request: TrainingRequest, journal: JournalWriter, should_stop: Callable[[], bool]) -> None:
    """Train as one of a group, and end as the rank of this seat ends.

    Raises:
        InvalidConfig: the request has no seat, or the effective batch is too small for so many ranks.
        GroupShort: too few ranks came together in time.
        ChildFailed: the leader cannot be reached.
        ChildStopped: a stop signal came to the leader's agent; its rank has saved, where there was one.
    """
    seat = request.seat
    if seat is None:
        raise InvalidConfig("the request has no seat; start training.loop.child for a training alone")
    require_shares(seat.most, request.spec.batch_size)
    code = _run(request, seat, journal, should_stop)
    if code:
        end_like(code)
    if not seat.leader:
        journal.write("done", {}, durable=True)


def _run(request: TrainingRequest, seat: Seat, journal: JournalWriter, should_stop: Callable[[], bool]) -> int:
    """Meet the others and run ranks; return 0 or the exit code of the last rank, negative for a signal."""
    # torch is imported here, so that a bad request fails before its seconds.
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousTimeoutError

    from training.distributed.elastic import GroupAgent, RankEnded
    from training.distributed.rank import run_rank
    from training.distributed.rendezvous import Rendezvous, connect_store, serve_store

    _silence_elastic()
    _resolve_from_files()
    agent = os.getpid()
    # A member's worker decides when this process ends: the leader's rank may still have to save.
    set_stop_handlers = _raise_at_stop_signals if seat.leader else ignore_stop_signals
    try:
        set_stop_handlers()
        if seat.leader and should_stop():  # while torch was imported
            raise ChildStopped(STOPPED)
        if not seat.leader:
            journal.write("connecting", {}, durable=True)
        store = connect_store(seat.endpoint) if seat.endpoint else serve_store(seat.address)
        endpoint = seat.endpoint or (seat.address, store.port)
        if seat.leader:
            journal.write("listening", {"port": store.port}, durable=True)
        rendezvous = Rendezvous(seat, store)

        def enter_rank() -> None:
            run_rank(request, seat, journal, endpoint, rendezvous, agent)

        GroupAgent(rendezvous, enter_rank, set_stop_handlers).run()
    except RankEnded as error:
        return error.code
    except SignalException as error:
        raise ChildStopped(STOPPED) from error
    except RendezvousTimeoutError as error:
        raise GroupShort(
            f"fewer than {seat.least} workers came together within {seat.gather_seconds:g} s; start more workers "
            "with PREFLIGHT_GROUP=on or ask for fewer"
        ) from error
    except OSError as error:
        raise ChildFailed(
            f"{seat.address} cannot be bound ({error.strerror}); "
            "set PREFLIGHT_ADVERTISE_HOST to an address of this worker"
        ) from error
    except (RendezvousError, DistError) as error:
        raise ChildFailed(_explain_unreachable(seat, error)) from error
    return 0


def _explain_unreachable(seat: Seat, error: Exception) -> str:
    if seat.leader:
        return (
            f"this worker's own address {seat.address} does not answer ({type(error).__name__}); "
            "set PREFLIGHT_ADVERTISE_HOST to one that does"
        )
    host, port = seat.endpoint or (seat.address, 0)
    return (
        f"the leader at {host} port {port} cannot be reached ({type(error).__name__}): it has ended, the network is "
        "cut, or ports are blocked; open all ports between workers, or set PREFLIGHT_ADVERTISE_HOST"
    )


def _resolve_from_files() -> None:
    """Look names up in /etc/hosts alone, where glibc can.

    Addresses are numbers here, but torch asks for the name of each, and elastic for that of the host: a name server
    that does not answer would hold them up for ten seconds.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None)["__nss_configure_lookup"](b"hosts", b"files")


def _raise_at_stop_signals() -> None:
    """Install the handlers of a leader's agent."""
    set_stop_handler(raised_safely(_raise_once))


def _raise_once(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signal handler's signature
    """Have elastic stop the rank and wait until it has saved; a second signal must not end this wait."""
    from torch.distributed.elastic.multiprocessing import SignalException

    ignore_stop_signals()
    raise SignalException("stopped by a signal", signal.SIGTERM)


def _silence_elastic() -> None:
    """Keep elastic's own messages out of standard error, the end of which is shown to users."""
    logger = logging.getLogger("torch.distributed")
    logger.propagate = False
    logger.handlers.clear()
    logger.addHandler(logging.NullHandler())


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, hold_seat)


if __name__ == "__main__":
    main()
