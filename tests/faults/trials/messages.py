"""Faults that need a scene of their own: other hosts, memory, disks, clocks, messages and those who send them."""

import http.server
import math
import os
import pickle
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from pydantic import JsonValue
from redis import Redis
from rq import Callback
from rq.webhook import Webhook

from faults import means
from faults.hostile import Hostile, hostile
from faults.hungry import ENTRY_POINTS
from faults.means import Clock, NotHere
from faults.preflight import PreflightScene
from faults.stage import Container, Job, Moment, S, Scene, Service, Verdict, hit
from faults.strikes.redis_server import Run, tripwire
from training.errors import PreflightError
from worker.config.settings import Settings
from worker.queue.admission.admit import admit
from worker.queue.untrusted_job import parse

TAKEOVER_S: Final = 30.0
"""Seconds within which another host goes on with the job of a dead one."""
MIB: Final = 1 << 20
MEMORY: Final = 1280 * MIB
"""Room for a process with torch and eight hungry samples, not for sixteen."""
HOSTILE: Final = 50
"""Hostile hashes before each good job."""
GOOD: Final[dict[str, JsonValue]] = {"epochs": 1, "batch_size": 32, "deterministic": False}
"""What makes a job short."""
HUNGRY: Final[dict[str, JsonValue]] = {
    "epochs": 1, "batch_size": 32, "validation_samples": 1400, "deterministic": False,
    "plan": {"threads": 1, "eval_batch": 32},
}  # fmt: skip
"""What makes a job of a hungry model short: three steps."""

Trial = Callable[[S, Random], Verdict]
"""Does something bad in a scene without containers, and judges."""


def alone(trial: Trial[S]) -> Run[S]:
    """Return a run that gives a trial a scene of its own."""

    def run(service: Service[S], random: Random) -> Verdict:
        with service.fresh() as scene:
            try:
                verdict = trial(scene, random)
            except NotHere as missing:
                return Verdict(not_run=str(missing))
            return scene.sums(verdict)

    return run


def finished(scene: Scene, job: Job) -> Verdict:
    """Wait for the end of a job and judge it; training that was lost is not asked for."""
    scene.await_end(job)
    return replace(scene.verdict(job, math.inf), lost_s=None, takeover_s=None)


# --- hosts


def host_dies(scene: Scene, random: Random) -> Verdict:
    """Kill everything on one host and start nothing there again; another host has an idle worker."""
    job, first, _ = _two_hosts(scene, random)
    struck = time.time()
    first.restarted = False
    hit(first.tree, signal.SIGKILL)
    scene.await_end(job)
    verdict = scene.verdict(job, struck)
    if verdict.takeover_s is not None and verdict.takeover_s > TAKEOVER_S:
        scene.late.append(f"taken over after {verdict.takeover_s:.0f} s")
    return verdict


def host_freezes(scene: Scene, random: Random) -> Verdict:
    """SIGSTOP everything on one host until another has taken over; it wakes up during or after the other's run."""
    job, first, second = _two_hosts(scene, random)
    struck, frozen = time.time(), first.tree
    hit(frozen, signal.SIGSTOP)
    if not scene.wait(lambda: second.supervisor is not None, 2 * TAKEOVER_S):
        scene.problems.append(f"not taken over within {2 * TAKEOVER_S:.0f} s")
    elif random.random() < 0.5:
        scene.sleep(random.uniform(0, 4))
    else:
        scene.await_end(job)
    hit(frozen, signal.SIGCONT)
    scene.await_end(job)
    scene.sleep(5)  # for whatever the late one does
    scene.most_trainings = 0  # the late one trains until it hears of the other; what counts is that it says nothing
    return scene.verdict(job, struck)


def _two_hosts(scene: Scene, random: Random) -> tuple[Job, Container, Container]:
    """Return a job in the middle of its training, the container that trains it, and one with an idle worker."""
    first, job = scene.add_container(), scene.new_job(epochs=6)
    scene.submit(job)
    scene.wait_for(Moment.DEQUEUED, job, random)
    second = scene.add_container()
    scene.await_workers()
    if not scene.wait_for(Moment.MID_EPOCH, job, random):
        scene.problems.append("the job ended before the fault: this proves nothing")
    return job, first, second


# --- Redis


def cut_for_long(scene: Scene, random: Random) -> Verdict:
    """Cut the way to Redis for a minute in the middle of a job that takes longer."""
    train_s = scene.expected.pace.train_s if scene.expected else 10.0
    job = scene.new_job(epochs=math.ceil(3 * 80 / train_s))
    scene.patience += 400
    scene.add_container()
    scene.submit(job)
    scene.wait_for(Moment.FIRST_STEP, job, random)
    struck = time.time()
    scene.proxy.cut()
    scene.sleep(60)
    scene.proxy.open()
    scene.await_end(job)
    return scene.verdict(job, struck)


# --- memory


def memory_runs_out(**fields: JsonValue) -> Trial[Scene]:
    """Return a trial of a job that needs more memory than its cgroup allows, until its batches are halved."""

    def trial(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
        with _hungry(scene, **fields) as job:
            return _judged(scene, job)

    return trial


def memory_is_never_enough(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Run a job that needs more memory than there is however small its batches: it must fail by that name."""
    with _hungry(scene, model="hungry-in-training", batch_size=256, validation_samples=1200) as job:
        scene.await_end(job)
        return Verdict(problems=(*scene.failure_problems(job, "out_of_memory"), *_worker_problems(scene)))


@contextmanager
def _hungry(scene: Scene, **fields: JsonValue) -> Iterator[Job]:
    """Yield a job of a hungry model that a worker in a cgroup takes, and see that memory did run out."""
    package = scene.site / "hungry-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: hungry\nVersion: 1\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    before = means.memory_kills()
    with means.memory_limit(MEMORY) as enter:
        scene.add_container(before=enter)
        job = scene.new_job(**(HUNGRY | fields))
        scene.submit(job)
        yield job
        scene.close()  # a cgroup can be removed when nobody is in it
    if means.memory_kills() == before:
        scene.problems.append("the kernel killed nothing for memory: this proves nothing")


# --- disks


def artifacts_full(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Fill the file system of the artifacts; later there is room."""
    return _refused_then_finished(scene, means.fill, means.make_room)


def artifacts_read_only(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Mount the file system of the artifacts read-only; later it is writable."""
    return _refused_then_finished(scene, means.make_read_only, means.make_writable)


def _refused_then_finished(scene: Scene, spoil: Callable[[Path], None], mend: Callable[[Path], None]) -> Verdict:
    with means.disk(scene.artifacts, 8 * MIB):
        scene.add_container()
        scene.await_workers()
        spoil(scene.artifacts)
        job = scene.new_job()
        scene.submit(job)
        scene.await_end(job)
        scene.problems += scene.failure_problems(job, "artifact_error")
        if scene.trained(job):
            scene.problems.append("it was trained first")
        mend(scene.artifacts)
        after = scene.new_job(**GOOD)
        scene.submit(after)
        verdict = _judged(scene, after)
        scene.close()  # nobody may be on the file system when it goes
    return verdict


def checkpoints_full(scene: PreflightScene, random: Random) -> Verdict:
    """Fill the file system of the checkpoints during the training, and kill the training: the old one must do."""
    state = scene.settings.state_dir
    with means.disk(state, 64 * MIB):
        scene.add_container()
        job = scene.new_job()
        scene.submit(job)
        scene.wait(lambda: len(scene.checkpoints(job)) > 1, scene.patience)
        means.fill(state)
        scene.sleep(random.uniform(1, 3))
        scene.damaged = 1000  # none could be written: what was trained since is lost
        struck = time.time()
        hit([scene.trainer()], signal.SIGKILL)
        scene.wait(lambda: scene.kinds(job).count("dataloader_config") > 1, scene.patience)
        means.make_room(state)
        scene.await_end(job)
        if "job_resumed" not in scene.kinds(job):
            scene.problems.append("the old checkpoint was not gone on from")
        verdict = scene.verdict(job, struck)
        scene.problems += _worker_problems(scene)
        scene.close()
    return verdict


# --- clocks


def clock_steps(scene: Scene, random: Random) -> Verdict:
    """Set the clock of two workers and of Redis back by an hour and forth by two, while a job runs."""
    clock = Clock(scene.directory)
    scene.redis.kill()
    scene.redis.environment = clock.environment
    scene.redis.start()
    for _ in range(2):
        scene.add_container(clock.environment)
    job = scene.new_job()
    scene.submit(job)
    scene.wait_for(Moment.FIRST_STEP, job, random)
    for seconds in random.sample((-3600, 3600, 7200, 0), 3):
        clock.set(seconds)
        scene.sleep(random.uniform(1, 3))
    return finished(scene, job)


# --- messages


def enqueued_twice(scene: Scene, random: Random) -> Verdict:
    """Enqueue one id again and again, before and while it runs, where two workers wait."""
    job = scene.new_job()
    for _ in range(2):
        scene.add_container()
    for _ in range(3):
        scene.submit(job)
        scene.enqueue(job)
    scene.wait_for(Moment.MID_EPOCH, job, random)
    scene.submit(job)
    scene.enqueue(job)
    return _settled(scene, job)


def enqueued_by_many(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Enqueue one id from twenty clients at the same time, half of them with RQ's own means."""
    job, barrier = scene.new_job(), threading.Barrier(20)
    for _ in range(2):
        scene.add_container()

    def client(number: int) -> None:
        barrier.wait()
        (scene.submit if number % 2 else scene.enqueue)(job)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(client, range(20)))
    return _settled(scene, job)


def _settled(scene: Scene, job: Job) -> Verdict:
    """Wait until nothing of a job is left in the queue or running, and judge."""
    scene.await_end(job)
    scene.wait(lambda: scene.connection.llen(scene.queue.key) == 0 and not scene.strangers(), scene.patience)
    return finished(scene, job)


def is_valid(entry: Hostile, connection: Redis) -> bool:
    """Whether a mutation left a job that is trained like any other, which would keep the good ones waiting."""
    try:
        job = parse(entry.id.decode(), {name.decode(): value for name, value in entry.fields.items()})
        admit(job, connection, Settings())
    except (PreflightError, UnicodeDecodeError):
        return False
    return entry.kind == "hash"


def hostile_hashes(good: int) -> Trial[Scene]:
    """Return a trial of fifty hostile hashes before each of so many good jobs."""

    def trial(scene: Scene, random: Random) -> Verdict:
        plant_bomb(scene)
        jobs = [scene.new_job(**GOOD) for _ in range(good)]
        grown = hostile(2 * HOSTILE * good, random.randrange(2**32), tripwire(scene))
        entries = [entry for entry in grown if not is_valid(entry, scene.connection)][: HOSTILE * good]
        for number, job in enumerate(jobs):
            for entry in entries[HOSTILE * number : HOSTILE * (number + 1)]:
                entry.put(scene.connection, scene.queue.key)
            scene.submit(job)
        scene.add_container()
        patience = good * (15 + (scene.expected.pace.whole_s if scene.expected else 10))
        scene.wait(lambda: all(scene.ended(job) for job in jobs), patience)
        done = sum(scene.rq_status(job) == "finished" for job in jobs)
        problems = [
            *([] if done == good else [f"{done} of {good} good jobs finished in {patience:.0f} s"]),
            *_worker_problems(scene),
            *_executed(scene),
        ]
        return Verdict(problems=tuple(problems), lost=done < good)

    return trial


def os_system(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Name os.system as the function."""
    scene.queue.enqueue("os.system", f"touch {tripwire(scene)}", job_id="function")
    return _not_executed(scene)


def callbacks(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Name callbacks: os.system, and a function whose module does harm when it is imported."""
    plant_bomb(scene)
    for number, name in enumerate(("os.system", "bomb.call")):
        callback = Callback(name)
        job = scene.new_job(**GOOD)
        scene.enqueue(job, on_success=callback, on_failure=callback, on_stopped=callback)
        scene.queue.enqueue("no.such.function", job_id=f"fails-{number}", on_failure=callback)
    return _not_executed(scene)


def instances(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Hand over an object whose method is the function."""
    trip = tripwire(scene)
    calls = [
        pickle.dumps(("touch", trip, (), {})),
        scene.queue.serializer.dumps(("system", "os", (f"touch {trip}",), {})),
        scene.queue.serializer.dumps(("touch", {"py/object": "pathlib.Path", "path": str(trip)}, (), {})),
    ]
    for number, call in enumerate(calls):
        fields = {b"created_at": b"2026-01-01T00:00:00.000000Z", b"status": b"queued", b"data": zlib.compress(call)}
        Hostile(f"instance-{number}".encode(), "hash", fields).put(scene.connection, scene.queue.key)
    return _not_executed(scene)


def webhooks(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Ask for URLs to be called when a job finishes or fails."""
    with listener() as (url, calls):
        hooks = [Webhook(url, "finished"), Webhook(url, "failed")]
        scene.enqueue(scene.new_job(**GOOD), webhooks=hooks)
        scene.queue.enqueue("no.such.function", job_id="fails", webhooks=hooks)
        verdict = _not_executed(scene)
    contacted = (f"the URL was called {len(calls)} times",) if calls else ()
    return replace(verdict, problems=verdict.problems + contacted)


def _not_executed(scene: Scene) -> Verdict:
    """Have a good job run behind the bad ones, and judge what the worker did about those."""
    scene.add_container()
    job = scene.new_job(**GOOD)
    scene.submit(job)
    verdict = finished(scene, job)
    return replace(verdict, problems=(*verdict.problems, *_worker_problems(scene), *_executed(scene)))


def _executed(scene: Scene) -> list[str]:
    return ["what came from Redis was executed"] if tripwire(scene).exists() else []


def plant_bomb(scene: Scene) -> None:
    """Make a module that the workers can import and that does harm when they do."""
    text = (
        f"from pathlib import Path\n\nPath({str(tripwire(scene))!r}).touch()\n\n\ndef call(*_: object) -> None: ...\n"
    )
    (scene.site / "bomb.py").write_text(text)


@contextmanager
def listener() -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a real HTTP server and the list of the requests that it got."""
    calls: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            calls.append(self.rfile.readline(1000).decode(errors="replace"))
            self.close_connection = True

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", calls
        server.shutdown()


# --- output


def stdout_closed(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Start the worker without a standard output."""
    scene.add_container(before=["sh", "-c", 'exec "$@" >&-', "sh"])
    job = scene.new_job()
    scene.submit(job)
    return _judged(scene, job)


def stdout_broken(scene: Scene, random: Random) -> Verdict:
    """Write to a pipe whose reader goes away while the job runs."""
    reader, writer = os.pipe()
    scene.add_container(stdout=writer)
    os.close(writer)
    job = scene.new_job()
    scene.submit(job)
    scene.wait_for(Moment.FIRST_STEP, job, random)
    os.close(reader)
    return _judged(scene, job)


def _judged(scene: Scene, job: Job) -> Verdict:
    verdict = finished(scene, job)
    return replace(verdict, problems=(*verdict.problems, *_worker_problems(scene)))


def _worker_problems(scene: Scene) -> list[str]:
    """Return whether the worker ended, whom only its jobs concern."""
    ends = len(scene.container.exits)
    return [f"the worker ended {ends} times"] if ends else []
