"""One rank: the training process of one container in a group, a fork of its agent."""

import signal
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass as checked
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from preflight.container.resources import detect
from preflight.errors import ChildStopped
from preflight.files.journal import JournalWriter, RecordWriter
from training.checkpoints.files import checkpoint_files
from training.distributed.elastic import PEER_LOST, REFORM
from training.distributed.gradients import may_poll
from training.distributed.measuring import MeasuredRanks
from training.distributed.mesh import connect_all
from training.distributed.ranks import is_peer_lost
from training.distributed.rendezvous import Place, Rendezvous, connect_store
from training.group import Seat
from training.loop.child import TrainingRequest, train
from training.process.child_main import StopFlag, die_with_parent, failure_recorded
from training.process.interrupts import ignore_stop_signals, release

LEAST_TIMEOUT: Final = 8.0
"""Seconds that a rank waits for the others, at least; and at least `TIMEOUT_STEPS` predicted steps of the leader."""
TIMEOUT_STEPS: Final = 10


class Deaf:
    """Signals to a member's rank: all are ignored. It ends with its agent, as the leader's rank has to save first."""

    reform = False

    def __init__(self) -> None:
        signal.signal(REFORM, signal.SIG_IGN)
        ignore_stop_signals()
        release()

    def __call__(self) -> bool:
        """Whether the training has to stop: the leader decides."""
        return False


class Orders:
    """Signals to the leader's rank: a stop signal stops the training, `REFORM` ends it to form the group again."""

    def __init__(self) -> None:
        self.reform = False
        signal.signal(REFORM, lambda *_: self._on_reform())
        self._stop = StopFlag()

    def _on_reform(self) -> None:
        self.reform = True

    def __call__(self) -> bool:
        """Whether the training has to stop after its step."""
        return self._stop() or self.reform


@dataclass(frozen=True, slots=True)
class MemberRecords:
    """Journal of a member: the leader alone records the training, and each member the warnings of its own rank."""

    journal: RecordWriter
    rank: int

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        """Append a warning with the rank; drop any other record."""
        if kind == "warning":
            self.journal.write(kind, {**payload, "rank": self.rank}, durable=durable)


@checked(frozen=True, slots=True, kw_only=True)
class Hello:
    """Message that the ranks of a round exchange before they connect."""

    name: str
    leader: bool
    timeout_seconds: Annotated[float, Field(gt=0)]
    """Longest wait for another rank; the leader's value counts."""


HELLO: Final = TypeAdapter(Hello)


def run_rank(
    request: TrainingRequest, seat: Seat, journal: JournalWriter, endpoint: tuple[str, int], rendezvous: Rendezvous,
    agent: int,
) -> None:  # fmt: skip
    """Train in the round that has formed, in a fork of process `agent`.

    Raises `SystemExit` with `PEER_LOST` where the group has to form again, and with 1 for a failure, which is recorded.
    """
    die_with_parent(agent)
    should_stop = Orders() if seat.leader else Deaf()  # the agent held back the stop signals until now
    try:
        with failure_recorded(journal):
            try:
                _train(request, seat, journal, endpoint, rendezvous, should_stop)
            except (ChildStopped, RuntimeError) as error:
                if should_stop.reform or is_peer_lost(error):
                    raise SystemExit(PEER_LOST) from error
                raise
    except Exception as error:
        traceback.print_exc()  # torch.multiprocessing would put it into a file
        raise SystemExit(1) from error


def _train(
    request: TrainingRequest, seat: Seat, journal: JournalWriter, endpoint: tuple[str, int], rendezvous: Rendezvous,
    should_stop: Orders | Deaf,
) -> None:  # fmt: skip
    place = rendezvous.place
    memory = PrefixStore(seat.secret, connect_store(endpoint))
    store = PrefixStore(str(place.round), memory)
    told = exchange(store, place, Hello(name=seat.name, leader=seat.leader, timeout_seconds=timeout_of(request)))
    ordered = sorted(range(place.ranks), key=lambda rank: not told[rank].leader)  # the others in their order
    if not told[ordered[0]].leader:  # the members were quicker
        raise SystemExit(PEER_LOST)
    names, rank = [told[each].name for each in ordered], ordered.index(place.rank)
    connect_all(store, seat.address, rank, names, told[ordered[0]].timeout_seconds)
    shares = request.share.of if request.share else 1
    group = MeasuredRanks(
        rank=rank, names=names, batch_size=request.spec.batch_size, on_finish=rendezvous.finish,
        deterministic=request.spec.deterministic, measures=seat.measure,
        wanted=seat.wire, memory=memory, polls=may_poll(request.plan, detect(shares=shares).quota),
    )  # fmt: skip
    seconds = time.monotonic() - place.began
    journal.write("group", {"members": [*names], "seconds": seconds, "restarts": place.restarts}, durable=True)
    resumable = replace(request, resume=(*own_checkpoints(request), *request.resume))
    train(resumable, journal if seat.leader else MemberRecords(journal, rank), should_stop, group)
    dist.destroy_process_group()


def exchange(store: Store, place: Place, own: Hello) -> list[Hello]:
    """Return the messages of all ranks of a round, in the order of the rendezvous."""
    store.set(f"hello/{place.rank}", HELLO.dump_json(own).decode())
    return [HELLO.validate_json(said) for said in store.multi_get([f"hello/{rank}" for rank in range(place.ranks)])]


def timeout_of(request: TrainingRequest) -> float:
    """Return the seconds after which a silent rank is given up."""
    step_s = request.prediction.step_s if request.prediction else 0.0
    return max(LEAST_TIMEOUT, TIMEOUT_STEPS * step_s)


def own_checkpoints(request: TrainingRequest) -> list[Path]:
    """Return the checkpoints that this attempt has made, the newest first."""
    own = request.checkpoints
    made = checkpoint_files(own.parent) if own is not None else []
    return sorted((path for _, path in made if path.parent == own), reverse=True)
