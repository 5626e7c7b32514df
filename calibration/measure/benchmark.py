"""Runs real training steps under a plan, in this process, and times them; imported only in measuring processes."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import torch
from torch import Tensor, nn

from calibration.measure.protocol import Checked, Gauged, Measured, Probed, Validated
from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.data.batches import Batches
from training.data.dataset_store import Store
from training.loop.evaluate import evaluate
from training.loop.train_step import TrainStep
from training.system.interference import Machine
from training.system.reference_workload import gauge

GATE_STEPS: Final = 8
"""Steps before gradients are compared: at fresh weights their cosine is the luck of the seed (bench/parity.py)."""
GATE_SAMPLES: Final = 32
"""Effective batch of those steps at most: what they cost depends on it, what they say does not (bench/parity.py)."""
AT_ONCE: Final = 2
"""Contenders kept ready: the best one and its challenger."""

AUDIBLE: Final = 0.1
"""Seconds from which on the kernel's ticks of 10 ms tell noise from chance."""
FIRST: Final = Plan(threads=1, micro_batch=1)
RESET_PEAK: Final = "5"
"""Written to /proc/self/clear_refs, it resets the peak of resident memory (proc.rst)."""


class Contender:
    """A plan with a model of its own, trained step by step on real batches."""

    def __init__(self, spec: TrainSpec, plan: Plan, store: Store) -> None:
        self.plan = plan
        self.spec = spec
        self.step = TrainStep(spec, plan, store.info.shape, store.info.classes)
        # The generator must not know this object: a cycle would keep the model in memory until it is collected.
        self._source = _forever(Batches(store, spec, plan))
        self.trained = 0
        self.fetch_s = 0.0
        """Seconds spent waiting for batches, in the steps of the last call of `run`."""

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the next effective batch, as training would get it."""
        return next(self._source)

    def run(self, steps: int) -> list[float]:
        """Run `steps` steps and return their seconds, fetching included."""
        torch.set_num_threads(self.plan.threads)
        self.fetch_s, seconds = 0.0, []
        for _ in range(steps):
            began = time.perf_counter()
            images, labels = self.next_batch()
            fetched = time.perf_counter()
            self.step.run(images, labels, self.spec.learning_rate)
            seconds.append(time.perf_counter() - began)
            self.fetch_s += fetched - began
        self.trained += steps
        return seconds


def _forever(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        yield from batches.of(epoch)


class Workbench:
    """The contenders of one process, and what can be asked of them."""

    def __init__(self, spec: TrainSpec, store: Store) -> None:
        """Build one model, for what torch imports only then, and forget it."""
        TrainStep(spec, FIRST, store.info.shape, store.info.classes)
        self._spec = spec
        self._store = store
        self._contenders: dict[tuple[Plan, int], Contender] = {}
        """By plan and effective batch."""
        self._machine = Machine()

    def measure(self, plan: Plan, steps: int, settle: int, warm_up: int, samples: int | None = None) -> Measured:
        """Time `steps` steps after `settle` that do not count; a plan that is new here takes `warm_up` first.

        They are steps of `samples` samples; None: of the effective batch.
        """
        _reset_peak()
        key = plan, samples or self._spec.batch_size
        contender = self._contenders.pop(key, None)
        warm: list[float] = []
        start_s = 0.0
        if contender is None:
            contender = self._begin(*key)
            if plan.loader_workers:
                began = time.perf_counter()
                contender.next_batch()  # comes when the workers have started and imported torch
                start_s = time.perf_counter() - began
            warm = contender.run(warm_up)
        self._contenders[key] = contender  # the most recently used one is the last
        contender.run(settle)
        before = self._machine.look()
        seconds = contender.run(steps)
        noise = self._machine.look().since(before)
        return Measured(
            seconds=tuple(seconds), fetch_s=contender.fetch_s, warm=tuple(warm), start_s=start_s, peak_bytes=_peak(),
            batch_statistics=_has_batch_statistics(contender.step.model),
            disturbed=noise.describe() if noise.noisy and noise.seconds >= AUDIBLE else "",
        )  # fmt: skip

    def probe(self, plan: Plan) -> Probed:
        """Train twice on one micro-batch, with the whole effective batch fetched, and look at the memory."""
        self.clear()
        _reset_peak()
        contender = Contender(self._spec, plan, self._store)
        torch.set_num_threads(plan.threads)
        seconds = 0.0
        for _ in range(2):  # the optimizer's state comes with the first step
            images, labels = contender.next_batch()
            began = time.perf_counter()
            contender.step.run(images[: plan.micro_batch], labels[: plan.micro_batch], self._spec.learning_rate)
            seconds = time.perf_counter() - began
        return Probed(peak_bytes=_peak(), seconds=seconds, batch_statistics=_has_batch_statistics(contender.step.model))

    def validate(self, plan: Plan, samples: int) -> Validated:
        """Time an evaluation of `samples` samples: the first pass builds primitives, the quicker one of two counts."""
        torch.set_num_threads(plan.threads)
        key = next((each for each in self._contenders if each[0] == plan), (plan, self._spec.batch_size))
        contender = self._contenders.get(key) or self._begin(*key)
        self._contenders[key] = contender
        info, count = self._store.info, min(samples, self._store.info.train_count)
        images, labels = self._store.train_images[-count:], self._store.train_labels[-count:]
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            evaluate(contender.step, images, labels, info.mean, info.std)
            seconds.append(time.perf_counter() - began)
        return Validated(sample_s=min(seconds[1:]) / count)

    def check(self, plan: Plan, reference: Plan) -> Checked:
        """Compare the gradients under two plans, after the steps of the gate."""
        spec = replace(self._spec, batch_size=min(GATE_SAMPLES, self._spec.batch_size))
        micro = min(GATE_SAMPLES, reference.micro_batch)
        gate = Contender(
            spec, replace(reference, micro_batch=micro, loader_workers=0, prefetch_factor=None), self._store
        )
        cosine = gradient_cosine(gate, replace(plan, micro_batch=micro), self._store, GATE_STEPS)
        return Checked(cosine=cosine if math.isfinite(cosine) else -1.0)  # NaN agrees with nothing

    def gauge(self, plan: Plan) -> Gauged:
        """Time the fixed piece of work."""
        return Gauged(seconds=gauge(plan.threads))

    def clear(self) -> None:
        """Forget every contender; their loader workers end with them."""
        self._contenders.clear()

    def _begin(self, plan: Plan, samples: int) -> Contender:
        while len(self._contenders) >= AT_ONCE:
            del self._contenders[next(iter(self._contenders))]
        spec = replace(self._spec, batch_size=samples)
        return Contender(spec, replace(plan, micro_batch=min(plan.micro_batch, samples)), self._store)


def gradient_cosine(reference: Contender, plan: Plan, store: Store, steps: int) -> float:
    """Return the cosine between the gradients of one real batch under `plan` and under the plan of `reference`.

    Both are taken at the weights that `reference` has after at least `steps` steps. A second model and its gradients
    are all that this takes of memory beside a training.
    """
    reference.run(max(0, steps - reference.trained))
    images, labels = reference.next_batch()
    other = TrainStep(reference.spec, plan, store.info.shape, store.info.classes)
    other.model.load_state_dict(reference.step.model.state_dict())
    gradients = []
    for step in (other, reference.step):
        step.model.train()
        step.gradients(images, labels)
        gradients.append([p.grad for p in step.model.parameters() if p.grad is not None])
    one, two = gradients
    return float(_dot(one, two) / (_dot(one, one) * _dot(two, two)).sqrt())


def _dot(one: Sequence[Tensor], two: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two vectors that lie in pieces, a float64 scalar."""
    return torch.stack([(a * b).sum(dtype=torch.float64) for a, b in zip(one, two, strict=True)]).sum()


def _has_batch_statistics(model: nn.Module) -> bool:
    """Whether what a sample teaches depends on the others of its micro-batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def _reset_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def _peak() -> int:
    """Return the peak of this process's memory since the last reset, and its loader workers' share of theirs, in bytes.

    What maps files (the data, the libraries) is left out: the kernel takes it back under pressure.
    """
    sizes = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if "kB" in line)
    resident = {name: int(value.split()[0]) << 10 for name, value in sizes.items()}
    peak = resident["VmHWM"] - resident["RssFile"]
    for worker in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            peak += worker.memory_full_info().uss
    return max(0, peak)
