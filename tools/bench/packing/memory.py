"""Random jobs, several at a time, in containers of little memory: whether the kernel kills any for it."""

import random
from typing import Final

from pydantic import JsonValue

from preflight.container.resources import detect
from tools.bench.container import container
from tools.bench.packing.scene import ended, enqueue, events, failures, workers
from tools.bench.pieces import Row
from tools.bench.record import judged

GIBIBYTES: Final = (1, 2, 4)
MIXES: Final = 100
SEED: Final = 55
KINDS: Final = (("mnist", "cnn", 20_000), ("digits", "resnet18", 1_280))
"""Data set, model, and the most samples that a job trains on: less than an epoch, some seconds."""
BATCHES: Final = (64, 256, 1024)


def memory(size: int) -> list[Row]:
    """Have one worker in `size` GiB train every third mix, one after the other; return its row."""
    mixes = range(GIBIBYTES.index(size), MIXES, len(GIBIBYTES))
    count = shared = failed = out_of_memory = 0
    with (
        container(detect().cores, size << 30) as box,
        workers(1, {"PREFLIGHT_PACKING": "throughput"}, box.enter) as running,
    ):
        for number in mixes:
            jobs = [enqueue(running, fields) for fields in _mix(number)]
            ended(running, jobs)
            kinds = [{event.type for _, event in events(running, job_id)} for job_id in jobs]
            count += len(jobs)
            failed += failures(running, jobs)
            shared += sum("processors_shared" in each for each in kinds)
            out_of_memory += sum("out_of_memory" in each for each in kinds)
            print(f"{size} GiB, mix {number}: {len(jobs)} jobs, {box.kills()} kills so far", flush=True)
        kills = box.kills()
    return [(
        f"kills for memory, {len(mixes)} random mixes in {size} GiB", f"{kills:,}",
        f"{count} jobs, {shared} beside another; {failed} failed, {out_of_memory} told that memory ran out", "none",
        judged(kills == failed == out_of_memory == 0),
    )]  # fmt: skip


def _mix(number: int) -> list[dict[str, JsonValue]]:
    """Return the jobs of a mix, the same in each call."""
    rng, jobs = random.Random(SEED + number), list[dict[str, JsonValue]]()  # noqa: S311 - a draw of jobs
    for _ in range(rng.randint(2, 5)):
        (dataset, model, most), batch = rng.choice(KINDS), rng.choice(BATCHES)
        steps = max(1, rng.randint(most // 10, most) // batch)
        jobs.append({"dataset": dataset, "model": model, "batch_size": batch, "max_steps": steps})
    return jobs
