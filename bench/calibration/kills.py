"""Whether calibration survives what kills it: every round a calibration that is struck, and what is left of it.

    python -m bench.calibration kills [--kills N] [--parallel N] [--seed N]

Each round is a real process with a plan cache of its own (bench/calibration/one.py), struck in one of these ways,
in turn:

- a measuring process is killed at a random moment (SIGKILL);
- the calibrating process is, and another one starts on the same cache, as a restarted worker would;
- a neighbour in the same cgroup of 512 MiB takes most of it at a random moment, so that the kernel kills;
- the user's batch does not fit into 512 MiB, and a direct order has it measured all the same;
- it does not fit, and nothing but calibration's prediction stands before the kill;
- it does not fit, but the memory of the model grows otherwise than predicted, so that the kill comes within the search.

After each: there is a plan that is valid, and under which the memory suffices for real steps; no process is left after
10 s; the lock can be taken; a second calibration finds the plan in the cache, or measures without trying again what
the first one did not survive. What is broken is printed, its directory stays, and the exit code is 1.
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from faults.means import NotHere, memory_kills, memory_limit

from bench.calibration import greedy
from bench.calibration.common import BenchOptions, mnist
from bench.calibration.one import Answer, Request
from bench.calibration.scene import LIMIT, LOOK_EVERY, ORPHANS_AFTER, SITE, Scene
from bench.record import start
from training.config.plan import Plan
from training.config.spec import DEFAULTS, TrainSpec

SECONDS: Final = 1.5
"""Longest time of a calibration, the start of its processes apart."""
LARGE_SECONDS: Final = 8.0
"""Where the effective batch is large: fewer are not enough for its few steps."""
LARGE: Final = 4096
"""Samples of `cnn` that need more than 512 MiB at once, and can be measured in time in pieces."""
MEMORY: Final = 512 << 20
NEIGHBOUR: Final = 400 << 20
"""What a neighbour takes: too much beside a measuring process, not too much beside its parent."""
STAYS: Final = 0.2
"""Seconds for which the neighbour keeps it."""
EATER: Final = """
import sys, time
eaten = []
for _ in range(int(sys.argv[1]) >> 24):
    eaten.append(b"x" * (1 << 24))
time.sleep(float(sys.argv[2]))
"""

OWN: Final = Plan(threads=max(1, len(os.sched_getaffinity(0))), micro_batch=DEFAULTS.batch_size)


@dataclass(slots=True)
class Verdict:
    """What came of a round."""

    problems: list[str] = field(default_factory=list)
    struck: bool = False
    """Whether the kill really happened."""
    valid: bool = False
    """Whether there was a plan, and memory for it."""
    measured: bool = False
    """Whether that plan was chosen by measurement, and is not the user's own for want of any."""
    orphans: int = 0
    locks: int = 0
    not_run: str = ""


# --- the strikes: each returns whether it really struck

Strike = Callable[[Scene, Random, float], bool]
"""Takes the scene of a calibration that runs, dice, and the seconds that one takes when nothing strikes it."""


def kill_measuring_process(scene: Scene, random: Random, usual: float) -> bool:
    """SIGKILL one of the processes that measure, as soon as there is one after a random moment."""
    scene.sleep(random.uniform(0, usual))
    while scene.running():
        for pid in scene.measuring():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        time.sleep(LOOK_EVERY)
    return False


def kill_calibrating_process(scene: Scene, random: Random, usual: float) -> bool:
    """SIGKILL the process that calibrates."""
    scene.sleep(random.uniform(0, usual))
    return scene.kill()


def crowd(scene: Scene, random: Random, usual: float) -> bool:
    """Have a neighbour in the cgroup take most of its memory for a moment."""
    scene.sleep(random.uniform(0, usual))
    before, alive = memory_kills(), scene.running()
    neighbour = scene.spawn([sys.executable, "-c", EATER, str(NEIGHBOUR), str(STAYS)])
    ended = neighbour.wait(LIMIT)
    return alive and memory_kills() - before > int(ended == -signal.SIGKILL)


def wait_for_memory_kill(scene: Scene, random: Random, usual: float) -> bool:  # noqa: ARG001 - a strike
    """Let the calibration itself run out of memory, or not."""
    before = memory_kills()
    scene.sleep(LIMIT)
    return memory_kills() > before


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to be killed, and the calibration that is."""

    name: str
    strike: Strike
    spec: TrainSpec = DEFAULTS
    seconds: float = SECONDS
    limited: bool = True
    """Whether it happens in a cgroup of 512 MiB."""
    order: bool = False

    def request(self, directory: Path, store: Path) -> Request:
        """Return what is calibrated in the directory of a round."""
        return Request(
            spec=self.spec, own=replace(OWN, micro_batch=self.spec.batch_size), store=store, seconds=self.seconds,
            cache=directory / "cache", directory=directory / "files", order=self.order,
        )  # fmt: skip


LARGE_SPEC: Final = replace(DEFAULTS, batch_size=LARGE)
KINDS: Final = (
    Kind(name="a measuring process is killed", strike=kill_measuring_process, limited=False),
    Kind(name="the calibrating process is killed", strike=kill_calibrating_process, limited=False),
    Kind(name="out of memory: a neighbour takes it", strike=crowd),
    Kind(name="out of memory: a large batch, by direct order", strike=wait_for_memory_kill, spec=LARGE_SPEC,
         seconds=LARGE_SECONDS, order=True),
    Kind(name="out of memory: a large batch, predicted", strike=wait_for_memory_kill, spec=LARGE_SPEC,
         seconds=LARGE_SECONDS),
    Kind(name="out of memory: more than predicted", strike=wait_for_memory_kill,
         spec=replace(DEFAULTS, model=greedy.NAME)),
)  # fmt: skip


# --- the rounds


def main(asked: BenchOptions) -> bool:
    """Run the rounds and print what came of them; return whether nothing is broken."""
    root = Path(tempfile.mkdtemp(prefix="kills-"))
    print(f"seed {asked.seed}; a calibration that broke something stays in {root}\n", flush=True)
    _register(root / SITE)
    store = mnist().path
    usual = _usual_seconds(root / "usual", store)
    verdicts: dict[str, list[Verdict]] = {kind.name: [] for kind in KINDS}
    alone = threading.Lock()
    """Held while the kernel's kills for memory are counted: it counts those of the whole machine."""

    def one(number: int) -> None:
        kind, directory = KINDS[number % len(KINDS)], root / str(number)
        with alone if kind.limited else nullcontext():
            verdict = _try(kind, directory, store, Random(f"{asked.seed} {number}"), usual)  # noqa: S311 - dice
        if verdict.problems:
            print(f"{directory}: {kind.name}: {'; '.join(verdict.problems)}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
        verdicts[kind.name].append(verdict)

    with ThreadPoolExecutor(asked.parallel) as pool:
        list(pool.map(one, range(asked.kills)))
    _show(verdicts, asked.seed)
    broken = sum(bool(verdict.problems) for found in verdicts.values() for verdict in found)
    if not broken:
        shutil.rmtree(root, ignore_errors=True)
    return not broken


def _register(site: Path) -> None:
    """Make the greedy model known to Pythons that look for modules in `site`."""
    package = site / "greedy-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1\n")
    (package / "entry_points.txt").write_text(greedy.ENTRY_POINTS)


def _usual_seconds(directory: Path, store: Path) -> float:
    """Return how long a calibration takes that nothing strikes."""
    scene, began = Scene(directory, KINDS[0].request(directory, store)), time.monotonic()
    if scene.call(scene.request) is None:
        raise RuntimeError(f"not even an undisturbed calibration came to its end; see {directory}")
    return time.monotonic() - began


def _try(kind: Kind, directory: Path, store: Path, random: Random, usual: float) -> Verdict:
    """Run a round, whatever happens."""
    verdict = Verdict()
    with ExitStack() as stack:
        try:
            enter = stack.enter_context(memory_limit(MEMORY)) if kind.limited else []
            scene = Scene(directory, kind.request(directory, store), enter)
            stack.callback(scene.clear)  # a cgroup can be removed when nobody is in it
            _round(kind, scene, verdict, random, usual)
        except NotHere as error:
            verdict.not_run = str(error)
        except Exception as error:
            # What cannot be judged has not been survived; the others shall be tried all the same.
            traceback.print_exc()
            verdict.problems.append(f"{type(error).__name__}: {error}")
    return verdict


def _round(kind: Kind, scene: Scene, verdict: Verdict, random: Random, usual: float) -> None:
    """Strike one calibration, and look at what is left."""
    request = scene.request
    scene.start(request)
    verdict.struck = kind.strike(scene, random, usual)
    answer = scene.end()
    _look_around(scene, verdict)
    if answer is None and verdict.struck:  # its worker is started again
        answer = scene.call(replace(request, order=False))
        _look_around(scene, verdict)
    if answer is None:
        verdict.problems.append(f"there is no plan: {scene.last_words()}")
        return
    second = scene.call(replace(request, order=False, prove=answer.choice.plan if kind.limited else None))
    _look_around(scene, verdict)
    if second is None:
        verdict.problems.append(f"a second calibration has no plan: {scene.last_words()}")
        return
    unfit = [*_faults(answer, request), *_faults(second, request), *([second.unfit] if second.unfit else [])]
    verdict.valid, verdict.measured = not unfit, answer.choice.source != "own"
    verdict.problems += unfit
    if answer.choice.finding is not None and second.choice.cache != "hit":
        verdict.problems.append("a second calibration did not find the plan in the cache")
    verdict.problems += [f"{plan} was tried again" for plan in scene.tried_again()]


def _look_around(scene: Scene, verdict: Verdict) -> None:
    """Count what a calibration has left behind."""
    orphans, locked = scene.orphans(), scene.locked()
    verdict.orphans += orphans
    verdict.locks += locked
    if orphans:
        verdict.problems.append(f"{orphans} process(es) left after {ORPHANS_AFTER:.0f} s")
    if locked:
        verdict.problems.append("the lock is left")


def _faults(answer: Answer, request: Request) -> Iterator[str]:
    """Yield what is wrong with a plan, whose fields were validated when the answer was read."""
    plan, finding = answer.choice.plan, answer.choice.finding
    if plan.micro_batch > request.spec.batch_size:
        yield f"a micro-batch of {plan.micro_batch} is more than the effective batch"
    if finding and finding.memory and plan.micro_batch > finding.memory.max_feasible:
        yield f"a micro-batch of {plan.micro_batch} is more than the {finding.memory.max_feasible} that are feasible"


def _show(verdicts: Mapping[str, Sequence[Verdict]], seed: int) -> None:
    """Print and write the table and the sums."""
    record = start("calibration-kills", "python -m bench.calibration kills", seeds=[seed])
    record.head(
        "struck by", "tried", "really struck", "valid plans", "measured ones", "orphans", "locks left", "broken"
    )
    for name, found in verdicts.items():
        record.row(name, *_sums(found))
    record.row("**all**", *_sums([verdict for found in verdicts.values() for verdict in found]))
    for reason in {verdict.not_run for found in verdicts.values() for verdict in found} - {""}:
        record.note(f"**some were not run: {reason}**")
    record.write()


def _sums(found: Sequence[Verdict]) -> list[str]:
    tried = [verdict for verdict in found if not verdict.not_run]
    return [
        str(sum(figure))
        for figure in (
            [1 for _ in tried], [each.struck for each in tried], [each.valid for each in tried],
            [each.measured for each in tried], [each.orphans for each in tried], [each.locks for each in tried],
            [bool(each.problems) for each in tried],
        )
    ]  # fmt: skip
