"""Trials of hostile messages: nothing of them may be executed."""

import http.server
import pickle
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Final

from redis import Redis
from rq import Callback
from rq.webhook import Webhook

from preflight.errors import PreflightError
from preflight.queue.untrusted_job import parse
from tools.faults.hostile import Hostile, hostile
from tools.faults.jobs import Verdict
from tools.faults.scene import Scene
from tools.faults.strikes.checkpoints import tripwire
from tools.faults.trials.runs import GOOD, Trial, finished, worker_problems
from worker.admission.admit import admit
from worker.config.settings import Settings

HOSTILE: Final = 50
"""Hostile hashes before each good job."""


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
            *worker_problems(scene),
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
    """Run a good job after the bad ones, and judge what the worker did about those."""
    scene.add_container()
    job = scene.new_job(**GOOD)
    scene.submit(job)
    verdict = finished(scene, job)
    return replace(verdict, problems=(*verdict.problems, *worker_problems(scene), *_executed(scene)))


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
