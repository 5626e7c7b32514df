"""Benchmarks of plans: real training steps, timed in a measuring process."""

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import torch

from calibration.measure.candidate import Candidate, gradient_cosine
from calibration.measure.protocol import Checked, Gauged, Measure, Measured, Probed, Validated
from preflight.container.counters import SystemCounters
from preflight.container.resources import binding_quota, status_sizes
from preflight.container.work_clock import WorkClock
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.tuner.settings import trim_malloc
from training.data.dataset_store import PreparedDataset
from training.loop.evaluate import evaluate_together
from training.step.train_step import TrainStep
from training.system.reference_workload import time_reference_workload

AT_ONCE: Final = 2
"""Candidates kept ready: the best one and its challenger."""

AUDIBLE: Final = 0.1
"""Least seconds over which the kernel's ticks of 10 ms tell noise from chance."""
FEW: Final = 2
"""Samples of a first step: the least that batch norms work with."""
FIRST: Final = Plan(threads=1, micro_batch=1)
RESET_PEAK: Final = "5"
"""Written to /proc/self/clear_refs, it resets the peak of resident memory (proc.rst)."""


class Benchmarker:
    """Measurements in one process, on the candidates that are ready there."""

    def __init__(self, spec: TrainSpec, store: PreparedDataset, shares: int = 1) -> None:
        """Build one model and forget it, as torch imports some modules only then."""
        TrainStep(spec, FIRST, store.info.shape, store.info.classes)
        self._spec = spec
        self._store = store
        self._candidates: dict[tuple[Plan, int], Candidate] = {}
        """Candidates by plan and effective batch."""
        self._machine = SystemCounters(shares=shares)
        self._began = self._machine.sample()

    def measure(self, order: Measure) -> Measured:
        """Time the steps of `order`."""
        _reset_peak()
        plan, quota = order.plan, binding_quota()
        key = plan, order.samples or self._spec.batch_size
        candidate = self._candidates.pop(key, None)
        warm: Sequence[float] = ()
        start_s = 0.0
        if candidate is None:
            candidate = self._begin(*key)
            if plan.loader_workers:
                began = time.perf_counter()
                candidate.next_batch()  # comes when the workers have started and imported torch
                start_s = time.perf_counter() - began
            warm = candidate.run(order.warm_up, quota)
        self._candidates[key] = candidate  # the most recently used one is the last
        before = self._machine.sample()
        seconds = candidate.run(order.steps, quota, order.most_s)
        noise = self._machine.sample().since(before)
        return Measured(
            seconds=tuple(seconds), fetch_s=candidate.fetch_s, once_s=candidate.update_s,
            warm=tuple(warm), start_s=start_s,
            peak_bytes=_peak(), batch_statistics=candidate.step.batch_statistics, period_s=candidate.period_s,
            disturbed=noise.describe() if noise.noisy and noise.seconds >= AUDIBLE else "",
        )  # fmt: skip

    def probe(self, plan: Plan) -> Probed:
        """Train on one micro-batch, with the whole effective batch fetched, and measure the memory.

        A first step on a few samples creates the optimizer's state: on one thread, since a step on two takes seconds
        while others hold the processors. The second step runs on the threads that have a free processor.
        """
        self.clear()
        _reset_peak()
        candidate = Candidate(self._spec, plan, self._store)
        torch.set_num_threads(1)
        seconds = 0.0
        for count in (min(FEW, plan.micro_batch), plan.micro_batch):
            images, labels = candidate.next_batch()
            clock = WorkClock(binding_quota())
            candidate.step.run(images[:count], labels[:count], self._spec.learning_rate)
            clock.lap()
            (seconds,) = clock.timed().seconds
            noise = self._machine.sample().since(self._began)
            free = noise.free if noise.seconds >= AUDIBLE else None
            torch.set_num_threads(plan.threads if free is None else max(1, min(plan.threads, free)))
        return Probed(
            peak_bytes=_peak(), seconds=seconds, batch_statistics=candidate.step.batch_statistics,
            slow_weight_gradients=candidate.step.slow_weight_gradients, free=free,
        )  # fmt: skip

    def validate(self, plan: Plan, samples: int) -> Validated:
        """Time an evaluation of `samples` samples: the first pass builds primitives, the quicker one of two counts.

        Under a quota both count: their difference comes from its periods and is no disturbance.
        """
        torch.set_num_threads(plan.threads)
        key = next((each for each in self._candidates if each[0] == plan), (plan, self._spec.batch_size))
        candidate = self._candidates.get(key) or self._begin(*key)
        self._candidates[key] = candidate
        info, count = self._store.info, min(samples, self._store.info.train_count)
        images, labels = self._store.train_images[-count:], self._store.train_labels[-count:]
        evaluate_together(candidate.step, images, labels, info.mean, info.std)
        clock = WorkClock(binding_quota())
        for _ in range(2):
            evaluate_together(candidate.step, images, labels, info.mean, info.std)
            clock.lap()
        timed = clock.timed()
        pass_s = min(timed.seconds) if timed.period_s is None else statistics.fmean(timed.seconds)
        return Validated(sample_s=pass_s / count)

    def check(self, plan: Plan, reference: Plan, steps: int, samples: int) -> Checked:
        """Compare the gradients under two plans in this process alone, after `steps` steps of `samples` samples."""
        spec = replace(self._spec, batch_size=min(samples, self._spec.batch_size))
        micro = min(samples, reference.micro_batch)
        gate = Candidate(
            spec, replace(reference, micro_batch=micro, loader_workers=0, prefetch_factor=None), self._store
        )
        cosine = gradient_cosine(gate, replace(plan, micro_batch=micro), self._store, steps)
        return Checked(cosine=cosine if math.isfinite(cosine) else -1.0)  # NaN agrees with nothing

    def gauge(self, plan: Plan) -> Gauged:
        """Time the reference workload."""
        return Gauged(seconds=time_reference_workload(plan.threads))

    def clear(self) -> None:
        """Delete every candidate; their loader workers end, and their memory is no part of the next peak."""
        self._candidates.clear()
        trim_malloc()

    def _begin(self, plan: Plan, samples: int) -> Candidate:
        while len(self._candidates) >= AT_ONCE:
            del self._candidates[next(iter(self._candidates))]
        trim_malloc()
        spec = replace(self._spec, batch_size=samples)
        return Candidate(spec, replace(plan, micro_batch=min(plan.micro_batch, samples)), self._store)


def _reset_peak() -> None:
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text(RESET_PEAK)


def _peak() -> int:
    """Return the peak of this process's memory since the last reset, and the private one of its children, in bytes.

    Mapped files (the data, the libraries) are left out: the kernel takes their memory back under pressure.
    """
    own = status_sizes()
    peak = own["VmHWM"] - own["RssFile"]
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            now = status_sizes(child.pid)
            peak += child.memory_full_info().uss + now["VmHWM"] - now["VmRSS"]
    return max(0, peak)
