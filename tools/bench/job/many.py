"""One worker, many small jobs, one after the other: its resources after them, compared with those after the first."""

import time
from typing import Final

from support.worker.process_tree import Held, settled_tree

from tools.bench.job.service import running_worker
from tools.bench.record import judged, start
from tools.bench.versions import checked_out, version_of

EVERY: Final = 50
"""Jobs between two looks."""
SMALL: Final = {
    "dataset": "digits", "model": "cnn", "batch_size": 32, "calibrate": False, "plan": {"threads": 1},
}  # fmt: skip
"""A job on one thread, because two starve next to other processes."""
GROWTH: Final = 0.05
"""Share of the memory after the first job by which it may differ later."""


def many_jobs(count: int) -> None:
    """Run `count` jobs; print and write the resources of the worker and all its children in between."""
    record = start("job-many", f"python -m tools.bench.job --many {count}")
    with checked_out("HEAD") as tree, running_worker(tree) as service:
        record.version = version_of(tree)
        record.head("after jobs", "processes", "descriptors", "memory (PSS)", "seconds a job")
        looks, busy = list[Held](), 0.0
        for number in range(1, count + 1):
            began = time.perf_counter()
            service.run(**SMALL)
            busy += time.perf_counter() - began
            if number in (1, count) or number % EVERY == 0:
                held = Held.by(settled_tree(service.process.pid))
                looks.append(held)
                record.row(f"{number}", f"{held.processes}", f"{held.descriptors}", f"{held.pss / 2**20:.1f} MiB",
                           f"{busy / number:.2f}")  # fmt: skip
    first, last = looks[0], looks[-1]
    growth = last.pss / first.pss - 1
    same = (last.processes, last.descriptors) == (first.processes, first.descriptors)
    record.note(f"Processes and descriptors as after the first job: {judged(same)}; memory {growth:+.1%} "
                f"(bound {GROWTH:.0%}): {judged(growth <= GROWTH)}.")  # fmt: skip
    record.write()
