"""Local ranks: the processes of a plan that has several. The first one leads and writes records; it forks the others.

They share out each effective batch like the workers of a group (training/distributed/ranks.py), over the loopback
address. None outlives the leader. Where another one ends, the leader ends as that one did.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import JsonValue

from preflight.contract.lengths import require_shares
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildFailed
from preflight.files.journal import Record, RecordWriter
from training.group import ALONE, Group
from training.process.child_main import die_with_parent, end_like, failure_recorded
from training.process.interrupts import ignore_stop_signals
from training.process.launch import pin
from training.process.runner import raise_failure

if TYPE_CHECKING:
    from training.distributed.ranks import Ranks

LOOPBACK: Final = "127.0.0.1"
TIMEOUT_SECONDS: Final = 86_400.0
"""Of a call between ranks: one that ends closes its connections, so that only a stopped process is waited for."""
ENDING_SECONDS: Final = 2.0
"""For which the ends of others are waited for, once one is lost."""

Task = Callable[["Group", RecordWriter], None]
"""What each process does as a rank of the group; the records of the leader alone are kept."""


def run_in_processes(spec: TrainSpec, plan: Plan, journal: RecordWriter, task: Task) -> None:
    """Run `task` in as many processes as `plan` has: as the leader here, as the others in forks of this process.

    Call before the first parallel work, as its threads do not survive a fork.

    Raises:
        InvalidConfig: there are more processes than shares of the effective batch.
        ChildFailed: no process could be forked, or one ended without a word.
        PreflightError: the failure of another process, or what `task` raises.
    """
    if plan.processes == 1:
        task(ALONE, journal)
        return
    require_shares(plan.processes, spec.batch_size, "processes", "plan.processes")
    from training.distributed.ranks import is_peer_lost  # with torch, so that the forks share its import

    store = os.memfd_create("ranks")
    told, tell = os.pipe()
    others: list[int] = []
    try:
        for rank in range(1, plan.processes):
            others.append(_fork(spec, plan, rank, store, tell, task))
        task(_connect(spec, plan, 0, store), journal)
    except RuntimeError as error:
        if is_peer_lost(error):
            os.close(tell)
            _raise_cause(_collect(others, ENDING_SECONDS), told, error)
        raise
    finally:
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _collect(others, ENDING_SECONDS)


class _Failures:
    """Tells the leader of a failure over a pipe, and drops other records."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:  # noqa: ARG002
        """Write the payload of a failure as one line."""
        if kind == "fail":
            os.write(self._pipe, json.dumps(payload).encode() + b"\n")


def _connect(spec: TrainSpec, plan: Plan, rank: int, store: int) -> "Ranks":
    """Return the group once all ranks have connected; their addresses are exchanged in the file `store`."""
    from torch._C._distributed_c10d import FileStore  # torch.distributed does not export it to a type checker

    from training.distributed.ranks import Ranks, connect

    pin(plan, rank)
    # A file without a name needs no directory, and nobody else can open it.
    connect(FileStore(f"/proc/self/fd/{store}", plan.processes), LOOPBACK, rank, plan.processes, TIMEOUT_SECONDS)
    names = [f"process {number}" for number in range(plan.processes)]
    return Ranks(
        rank=rank, names=names, batch_size=spec.batch_size, on_finish=lambda: None, deterministic=spec.deterministic
    )  # fmt: skip


def _fork(spec: TrainSpec, plan: Plan, rank: int, store: int, tell: int, task: Task) -> int:
    """Run `task` as `rank` in a fork, whose process id is returned."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        raise ChildFailed(
            f"no process could be forked for a plan of {plan.processes} ({error.strerror}); "
            "raise the container's limit on processes or memory"
        ) from error
    if pid == 0:
        _run_forked(parent, lambda records: task(_connect(spec, plan, rank, store), records), _Failures(tell))
    return pid


def _run_forked(parent: int, task: Callable[[RecordWriter], None], failures: _Failures) -> NoReturn:
    """Run `task` in a fork of process `parent`, and exit with 1 after a failure, which is told."""
    code = 1
    try:
        die_with_parent(parent)
        ignore_stop_signals()  # the leader alone saves, and the others end with it
        with failure_recorded(failures):
            task(failures)
        code = 0
    except SystemExit:
        pass
    except BaseException as error:
        from training.distributed.ranks import is_peer_lost

        if not is_peer_lost(error):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(code)


def _collect(pids: Sequence[int], seconds: float) -> dict[int, int]:
    """Wait at most `seconds` until the processes have ended; return the exit codes of those that have."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                try:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:  # collected before
                    ended, status = pid, 0
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            break
        time.sleep(0.005)
    return codes


def _raise_cause(codes: Mapping[int, int], told: int, error: RuntimeError) -> NoReturn:
    """End as the other process did that was killed, or raise its failure; `error` is what was seen of its end here."""
    for code in codes.values():
        if code < 0:
            end_like(code)
    os.set_blocking(told, False)  # one that has not ended holds the other end open
    with suppress(BlockingIOError):
        for line in os.read(told, 1 << 16).splitlines()[:1]:
            raise_failure(Record(0, "fail", 0.0, json.loads(line)))
    raise ChildFailed(f"a process of the plan was lost (exit codes {[*codes.values()]}): {error}") from error
