"""Every fault: what it does, how survival is recognised, how it is tried on this service and on stock RQ."""

from dataclasses import dataclass
from typing import Final

from tools.faults.jobs import Moment
from tools.faults.preflight import PreflightScene
from tools.faults.scene import Scene
from tools.faults.stock import StockScene
from tools.faults.strikes import checkpoints, processes, redis_server
from tools.faults.strikes.checkpoints import damage
from tools.faults.strikes.runs import Run, Strike, at
from tools.faults.trials import enqueueing, extras, groups, hosts, messages, resources
from tools.faults.trials.runs import Trial, alone

FINISHED: Final = "finished once, no double or missing event, weights as undisturbed, no orphan"
WITHIN: Final = f"{FINISHED}, at most one checkpoint interval lost"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the runs that try it."""

    name: str
    does: str
    survival: str
    """How survival is recognised."""
    ours: Run[PreflightScene]
    stock: Run[StockScene] | str
    """Run that tries it on stock RQ; else the reason for which that makes no sense."""
    times: int = 1
    """Number of times that it is tried, unless it is drawn."""
    drawn: bool = False
    """Whether the rounds that `--rounds` asks for are drawn from this one and its like."""

    @property
    def strikes_usual_job(self) -> bool:
        """Whether it strikes while a worker runs the usual job, and so also while it runs several."""
        return self.stock != NO_GROUPS


def struck(
    name: str, does: str, strike: Strike[Scene], survival: str = WITHIN, *,
    moments: tuple[Moment, ...] = tuple(Moment), stock: str | None = None, times: int = 1, drawn: bool = True,
) -> Fault:  # fmt: skip
    """Return a fault that strikes at one of `moments` of the usual job."""
    return Fault(
        name, does, survival, at(strike, *moments), at(strike, *moments) if stock is None else stock, times, drawn
    )  # fmt: skip


def tried(name: str, does: str, trial: Trial[Scene], survival: str = FINISHED, *, times: int = 1) -> Fault:
    """Return a fault with a separate scene on either service."""
    return Fault(name, does, survival, alone(trial), alone(trial), times)


RUNNING: Final = tuple(moment for moment in Moment if moment not in (Moment.DEQUEUED, Moment.MARKED))
"""Moments at which there is a child."""
SAVING: Final = (Moment.MID_EPOCH, Moment.CHECKPOINT)
NO_REPORT: Final = "has no report"
NO_CHECKPOINTS: Final = "has no checkpoints"
NO_GROUPS: Final = "has no groups"
TOGETHER: Final = "finished once by all whom it demands, no double or missing event, weights as undisturbed, no orphan"

CATALOGUE: Final = (
    struck("kill -9 of the training child", "SIGKILL of the child that calibrates or trains", processes.kill_training,
           moments=RUNNING, stock="has none: the work-horse trains"),
    struck("kill -9 of the fork server", "SIGKILL of the process that forks the children, which end with it",
           processes.kill_standby, moments=RUNNING, stock="has none"),
    struck("fork server frozen", "SIGSTOP of it, for good; a child that it has not forked yet is started otherwise",
           processes.freeze_standby, moments=RUNNING, stock="has none"),
    struck("kill -9 of the supervisor", "SIGKILL of RQ's work-horse", processes.kill_supervisor),
    struck("kill -9 of the worker", "SIGKILL of the worker alone; it is started again", processes.kill_worker),
    struck("kill -9 of the whole tree", "SIGKILL of the worker and all below it; it is started again",
           processes.kill_tree),
    struck("kill -9 of Redis, its AOF kept", "SIGKILL of redis-server, restart up to 2 s later",
           redis_server.restart_redis),
    struck("kill -9 of Redis, its data lost", "the same, but it comes back empty; the producer looks at its outbox",
           redis_server.empty_redis),
    struck("SIGTERM", "stop with 10 s of grace, then start again", processes.stop,
           f"{WITHIN}; exit code 0 within {processes.STOPS_WITHIN:.0f} s"),
    struck("SIGTERM to all processes", "the same, but every process gets it, in any order", processes.stop_everything,
           f"{WITHIN}; exit code 0 within {processes.STOPS_WITHIN:.0f} s"),
    struck("SIGTERM twice", "the second within half a second", processes.stop_twice),
    struck("SIGTERM without grace", "SIGKILL of the whole tree at once after it", processes.stop_without_grace),
    struck("Redis cut off for 5 s", "connections break and are refused", redis_server.cut(5)),
    struck("Redis silent for 5 s", "SIGSTOP of redis-server: connections stay, no answer comes", redis_server.hang(5)),
    struck("failover to a replica", "the old primary becomes a replica and keeps its connections; back up to 4 s later",
           redis_server.fail_over),
    struck("failover to a replica that lags", "the same to one that lacks what was written in up to a second",
           redis_server.fail_over_behind),
    Fault("checkpoint truncated", "kill -9 of the whole tree, the newest checkpoint cut off at random",
          f"{FINISHED}, at most two intervals lost", at(damage(checkpoints.truncate), *SAVING), NO_CHECKPOINTS,
          drawn=True),
    Fault("checkpoint bit-flipped", "the same with one bit turned over",
          f"{FINISHED}, at most two intervals lost", at(damage(checkpoints.flip_bit), *SAVING), NO_CHECKPOINTS,
          drawn=True),
    Fault("checkpoint a pickle bomb", "the same with a pickle in its place",
          f"{FINISHED}, nothing executed", at(damage(checkpoints.plant_bomb), *SAVING), NO_CHECKPOINTS, drawn=True),
    Fault("kill -9 in a group", "up to three SIGKILLs of leader or members: worker, work-horse, training or all",
          TOGETHER, alone(groups.struck(groups.kill)), NO_GROUPS, drawn=True),
    Fault("SIGTERM in a group", "of up to three of two to four workers, which are started again",
          TOGETHER, alone(groups.struck(groups.stop)), NO_GROUPS, drawn=True),
    Fault("worker frozen in a group", "SIGSTOP of leader or member for 2 to 20 s, up to three times",
          TOGETHER, alone(groups.struck(groups.freeze)), NO_GROUPS, drawn=True),
    tried("host dies", "SIGKILL of the whole tree, never started again; an idle worker elsewhere", hosts.host_dies,
          f"{WITHIN}; taken over within {hosts.TAKEOVER_S:.0f} s", times=3),
    tried("host frozen beyond its lease", "SIGSTOP of the whole tree, takeover by another, SIGCONT",
          hosts.host_freezes, f"{FINISHED}; the late one says nothing", times=2),
    tried("Redis cut off for 60 s mid job", "connections break and are refused", hosts.cut_for_long),
    struck("Redis cut off for 60 s across the end", "connections break and are refused", redis_server.cut(60),
           moments=(Moment.MID_EPOCH,), drawn=False),
    struck("WatchError at success", "another client changes, without a pause, the key that RQ watches",
           redis_server.touch_dependents, moments=(Moment.MID_EPOCH,), times=2, drawn=False),
    tried("out of memory in calibration", "a real cgroup too small for the user's plan, calibration on",
          resources.memory_runs_out(model="hungry-in-training", calibrate=True, force_calibration=True)),
    tried("out of memory in training", "a real cgroup too small for the batch",
          resources.memory_runs_out(model="hungry-in-training")),
    tried("out of memory in evaluation", "a real cgroup too small for the evaluation",
          resources.memory_runs_out(model="hungry-in-evaluation", validation_samples=50)),
    tried("out of memory for good", "a real cgroup too small for an eighth of the batch",
          resources.memory_is_never_enough, "failed: out_of_memory, the worker lives"),
    tried("artifact directory full", "a real file system without a free byte", resources.artifacts_full,
          "failed: artifact_error before training; the next job finishes"),
    tried("artifact directory read-only", "a real file system mounted read-only", resources.artifacts_read_only,
          "failed: artifact_error before training; the next job finishes"),
    Fault("checkpoint directory full", "a real file system fills up during the training, then kill -9 of the child",
          f"{FINISHED}; gone on from the old checkpoint", alone(resources.checkpoints_full), NO_CHECKPOINTS),
    Fault("kill -9 between result and report", "SIGKILL of the whole tree; it is started again",
          f"{FINISHED}; the report made and told once", alone(extras.at_report(extras.kill_tree)), NO_REPORT, 2),
    Fault("report crashes", "SIGKILL of the process that makes the report",
          f"{FINISHED}; the report made and told once", alone(extras.at_report(extras.crash)), NO_REPORT),
    Fault("disk full between model and report", "a real file system fills up when the model is published, for a while",
          f"{FINISHED}; the report made and told once", alone(extras.disk_full), NO_REPORT),
    tried("system clock set back and forth", "by hours, for two workers and Redis", hosts.clock_steps,
          times=2),
    tried("one id enqueued twice", "by the client and by RQ itself, before and while it runs; two workers",
          enqueueing.enqueued_twice, f"{FINISHED}, trained once"),
    tried("one id enqueued by 20 at once", "by client and by RQ itself; two workers", enqueueing.enqueued_by_many,
          f"{FINISHED}, trained once"),
    tried("1,000 hostile job hashes", "grown by mutation, between 20 good jobs", messages.hostile_hashes(20),
          "20 of 20 finished, nothing executed, the worker never restarted"),
    tried("os.system as function", "enqueued by name", messages.os_system, "not executed; the next job finishes"),
    tried("os.system as callback", "of jobs that finish and that fail; also a module that does harm when imported",
          messages.callbacks, "not executed, not imported; the job finishes"),
    tried("os.system as instance", "an object whose method is the function, pickled and as JSON", messages.instances,
          "not executed; the next job finishes"),
    tried("webhook URL", "a real HTTP server that must not be called", messages.webhooks,
          "never contacted; the job finishes"),
    tried("standard output closed", "from the start", hosts.stdout_closed, f"{FINISHED}, the worker lives"),
    tried("standard output broken", "a pipe whose reader goes away", hosts.stdout_broken,
          f"{FINISHED}, the worker lives"),
)  # fmt: skip
