"""The elastic agent: PyTorch's own, which starts one rank, and starts it again when the group has changed."""

import signal
from collections.abc import Callable
from typing import Final

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from training.distributed.rendezvous import Rendezvous
from training.process.interrupts import held_back

PEER_LOST: Final = 75
"""Exit code of a rank that another one left, or that was asked to form a new group (EX_TEMPFAIL of sysexits.h)."""
REFORM: Final = signal.SIGUSR1
"""Signal that asks the leader's rank to save a checkpoint and end with `PEER_LOST`."""
REFORM_SECONDS: Final = 15
"""Seconds for that, after which the rank is killed."""
VANISHED_SECONDS: Final = 1
"""The same where a member has vanished: a rank that waits for it cannot save anything."""
MONITOR_SECONDS: Final = 0.2
RESTARTS: Final = 1_000_000
"""Most rounds of a training: the supervisor ends a group that makes no progress."""


class RankEnded(Exception):
    """A rank ended by itself and not because another one was lost; `code` is negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"a rank ended with {code}")
        self.code = code


class NoLogs(LogsSpecs):
    """Logs of elastic without files: the rank writes to the agent's standard error, and failures to the journal."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return no redirection for each rank."""
        nowhere = dict.fromkeys(envs, "")
        return LogsDest(stdouts=nowhere, stderrs={**nowhere}, error_files={**nowhere})

    @property
    def root_log_dir(self) -> str:
        """Empty path: there are no log files."""
        return ""


class GroupAgent(LocalElasticAgent):
    """Runs one rank as often as the group forms. Use `run`."""

    def __init__(
        self, rendezvous: Rendezvous, run_rank: Callable[[], None], set_stop_handlers: Callable[[], None]
    ) -> None:
        """Call `run_rank` in a fork of this process, each time that `rendezvous` has formed a round.

        `set_stop_handlers` is called after that in this process: elastic sets handlers of which each raises again.
        """
        spec = WorkerSpec(
            role="rank", local_world_size=1, rdzv_handler=rendezvous, entrypoint=run_rank, max_restarts=RESTARTS,
            monitor_interval=MONITOR_SECONDS,
        )  # fmt: skip
        super().__init__(spec, NoLogs(), start_method="fork")
        self._rendezvous_of_seat = rendezvous
        self._set_stop_handlers = set_stop_handlers

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        """Fork the rank with the stop signals held back: it has its own handlers for them."""
        with held_back():
            started: dict[int, int] = super()._start_workers(worker_group)
            self._set_stop_handlers()
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the rank; raises `RankEnded` unless it asks for a new group."""
        result: RunResult = super()._monitor_workers(worker_group)
        for failure in result.failures.values():
            if failure.exitcode != PEER_LOST:
                raise RankEnded(failure.exitcode)
        return result

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002 - as in the base class
        """End the rank so that the group can form again."""
        self._shutdown(REFORM, VANISHED_SECONDS if self._rendezvous_of_seat.vanished else REFORM_SECONDS)

    def _exit_barrier(self) -> None:
        """Wait for nobody: members leave when the training is over."""
