"""Predictions over HTTP against a plain inference service, in turns: each service on one core, the clients on another.

    python -m tools.bench.predict [PART ...] [--minutes N]

Both answer with the network `cnn` (random weights: the time is the same) on PNG pictures like MNIST's. Clients keep
their connections open and ask again as soon as they have an answer. Where there is one core only, all share it. `rates`
and `many` take two minutes, `promotions` half a minute, `memory` three minutes, `training` eight.
"""

import base64
import json
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Final

from tools.bench.pieces import Bench, Row
from tools.bench.predict.beside_training import training
from tools.bench.predict.scene import ALIAS, ME, Connection, Target, picture, resident, scene
from tools.bench.record import judged, samples
from worker.models.promoting import promote_artifact

Turn = tuple[float, float, float]
"""Requests a second, and the milliseconds of the median answer and of the 99th percentile."""
ROUNDS: Final = 5
TURN_SECONDS: Final = 5.0
"""Seconds of a turn of each service."""
CLIENTS: Final = (1, 32)
LEAST: Final = {1: 0.7, 32: 1.0}
"""Share of the plain service's requests a second."""
BATCH, BATCH_RATE = 256, 5_000
"""Pictures of one request, and the least a second."""
SWAPS, SWAPPED = 20, 10_000
"""Promotions, and requests that are answered meanwhile."""
MEMORY_BOUND: Final = 250
"""MiB that predicting adds."""
WARM, LONG = 1_000, 100_000
"""Requests before the memory is compared."""
GROWTH: Final = 1.05
"""Memory after `LONG` requests against that after `WARM`; its allocator returns some and takes it again."""


def rates() -> list[Row]:
    """Return requests a second and percentiles of our service and of the plain one, in turns.

    The plain one has the parser that `pip install uvicorn` brings, and then that of ours.
    """
    rows: list[Row] = []
    with scene() as running, running.plain("h11") as plain, running.plain("httptools") as quicker:
        targets = running.ours, plain, quicker
        for clients in CLIENTS:
            turns = in_turns(targets, clients)
            rows += compare(*(turns[target.name] for target in targets), clients=clients)
    return rows


def in_turns(targets: Sequence[Target], clients: int) -> dict[str, list[Turn]]:
    """Load the services in turns; return what each turn of each one was."""
    turns: dict[str, list[Turn]] = {target.name: [] for target in targets}
    for number in range(ROUNDS):
        for target in targets if number % 2 else reversed(targets):
            rate, taken = load_with(target, clients, TURN_SECONDS)
            turns[target.name].append((rate, 1e3 * taken[len(taken) // 2], 1e3 * taken[int(0.99 * len(taken))]))
    return turns


def compare(ours: Sequence[Turn], plain: Sequence[Turn], quicker: Sequence[Turn], *, clients: int) -> list[Row]:
    """Return the rows of a number of clients."""
    (mine, middles, lates), (theirs, other_middles, other_lates) = (zip(*turns, strict=True) for turns in (ours, plain))
    best = [rate for rate, _, _ in quicker]
    ratios, to_best = (
        [one / other for one, other in zip(mine, others, strict=True)] for others in (theirs, best)
    )  # fmt: skip
    name = f"{clients} client{'s' * (clients > 1)}"
    return [
        (f"requests a second, {name}", samples(mine, ",.0f"), samples(theirs, ",.0f"),
         f"{samples(ratios, '.2f')} times the plain one's, at least {LEAST[clients]}",
         judged(statistics.median(ratios) >= LEAST[clients])),
        (f"the same beside the plain one with httptools, {name}", samples(mine, ",.0f"), samples(best, ",.0f"),
         f"{samples(to_best, '.2f')} times the plain one's", ""),
        (f"median, {name}", samples(middles, ".1f", " ms"), samples(other_middles, ".1f", " ms"), "", ""),
        (f"99th percentile, {name}", samples(lates, ".1f", " ms"), samples(other_lates, ".1f", " ms"),
         "at most the plain one's", judged(statistics.median(lates) <= statistics.median(other_lates))),
    ]  # fmt: skip


def load_with(target: Target, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Return requests a second, and the sorted seconds of the answers."""
    bodies = [picture(width) for width in range(9, 19)]
    taken: list[float] = []
    ready, end = threading.Barrier(clients + 1), [0.0]

    def run() -> None:
        connection = Connection(target)
        connection.ask(bodies[0])
        ready.wait()
        own, number = [], 0
        while (began := time.perf_counter()) < end[0]:
            connection.ask(bodies[number % len(bodies)])
            own.append(time.perf_counter() - began)
            number += 1
        taken.extend(own)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    end[0] = time.perf_counter() + 3600
    ready.wait()
    end[0] = time.perf_counter() + seconds
    for thread in threads:
        thread.join()
    return len(taken) / seconds, sorted(taken)


def many() -> list[Row]:
    """Return pictures a second of requests with `BATCH` pictures."""
    images = [base64.b64encode(picture(9 + number % 10)).decode() for number in range(BATCH)]
    body, found = json.dumps({"images": images}).encode(), []
    with scene() as running:
        connection = Connection(running.ours)
        connection.ask(body, b"application/json")
        for _ in range(20):
            began = time.perf_counter()
            answer = connection.ask(body, b"application/json")
            found.append(BATCH / (time.perf_counter() - began))
    if len(json.loads(answer)["predictions"]) != BATCH:
        raise SystemExit("an answer lacks pictures")
    return [
        (f"pictures a second, {BATCH} in one request", samples(found, ",.0f"), "", f"at least {BATCH_RATE:,}",
         judged(statistics.median(found) >= BATCH_RATE)),
    ]  # fmt: skip


def promotions() -> list[Row]:
    """Return the requests that failed while models were promoted, and the models that answered."""
    left, lock, found, failed = [SWAPPED], threading.Lock(), set[str](), list[str]()

    def run(target: Target) -> None:
        connection = Connection(target)
        while True:
            with lock:
                if left[0] <= 0:
                    return
                left[0] -= 1
            try:
                status, body = connection.send(picture(10))
            except OSError as error:
                failed.append(str(error))
                connection = Connection(target)
                continue
            if status == 200:
                found.add(json.loads(body)["model_sha256"])
            else:
                failed.append(body.decode()[:200])

    with scene() as running:
        Connection(running.ours).ask(picture(10))
        threads = [threading.Thread(target=run, args=(running.ours,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for number in range(SWAPS):
            while left[0] > SWAPPED * (1 - (number + 1) / (SWAPS + 1)):
                time.sleep(0.01)
            promote_artifact(running.store, ALIAS, running.artifacts[number % 2], ME)
        for thread in threads:
            thread.join()
        known = {each.model_sha256 for each in running.store.alias(ALIAS).history}
    for words in sorted(set(failed))[:5]:
        print(words)
    return [
        (f"{SWAPPED:,} requests while {SWAPS} promotions are made", f"{len(failed)} failed",
         f"answered by {len(found)} models", "0 failed, by one of the two models",
         judged(not failed and found == known)),
    ]  # fmt: skip


def memory(requests: int = LONG) -> list[Row]:
    """Return the rows of the memory that predicting adds, and of its growth."""
    with scene() as running:
        time.sleep(2)  # the service has started
        before = resident(running.process)
        connection = Connection(running.ours)
        bodies = [picture(width) for width in range(9, 19)]
        for number in range(WARM):
            connection.ask(bodies[number % len(bodies)])
        first = resident(running.process)
        for number in range(WARM, requests):
            connection.ask(bodies[number % len(bodies)])
        last = resident(running.process)
    return [
        (f"resident after {requests:,} requests", f"{last / 2**20:.0f} MiB",
         f"{first / 2**20:.0f} MiB after {WARM:,}", f"at most {GROWTH:g} times that", judged(last <= GROWTH * first)),
        ("of it added by predicting", f"{(last - before) / 2**20:.0f} MiB",
         f"{before / 2**20:.0f} MiB before the first request", f"at most {MEMORY_BOUND} MiB",
         judged(last - before <= MEMORY_BOUND * 2**20)),
    ]  # fmt: skip


BENCH: Final = Bench(
    name="predict", command="python -m tools.bench.predict", leaves_out="a network between clients and service",
    parts={"rates": rates, "many": many, "promotions": promotions, "memory": memory, "training": training},
)  # fmt: skip


if __name__ == "__main__":
    BENCH.main(__doc__)
