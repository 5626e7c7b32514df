"""Mutations: the plans that each knob tries from the best plan so far, and reasons to skip others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

from calibration.space import (
    COMPILE_SECONDS,
    PREFETCH,
    SearchState,
    Skipped,
    Space,
    Turned,
    loader_bytes,
)
from preflight.contract.knobs import Knob
from preflight.contract.plan import PARTS, KnobName, Plan, changed
from training.system.requirements import SHARED_MEMORY

Mutations = Callable[[Plan, Space, SearchState], Turned]

MIN_MICRO_BATCH: Final = 16
"""Smallest micro-batch that is tried for speed: with smaller ones every layer is called more often."""
FETCH_SHARE: Final = 0.05
"""Share of a step spent on its batch below which no loader can gain more than noise."""
VALIDATION_SHARE: Final = 0.05
"""Share of an epoch spent validating below which the evaluation batch cannot gain more than noise."""
COMPILE_GAIN: Final = 1.2
"""Largest gain of compiling that was measured here; a training too short to pay for it at that is not compiled."""
FORMAT_GAIN: Final = 1.5
"""Gain that channels_last alone has never had; 1.17x to 1.36x were measured."""
PREFETCHES: Final = (PREFETCH, 4, 8)
"""Prefetch counts that are tried; they level out batches that take longer than others, and are held in memory."""
NO_SHARED_ROOM: Final = f"the batches of loader workers would not fit into {SHARED_MEMORY}"
NO_ROOM: Final = "its loader workers would not fit into the memory beside the training"


def allocators(best: Plan, space: Space, known: SearchState) -> Turned:  # noqa: ARG001 - one signature for all knobs
    """Try tcmalloc where it is installed."""
    if best.allocator == "tcmalloc":
        return []
    other = replace(best, allocator="tcmalloc")
    return [other if space.tcmalloc else Skipped(other, "tcmalloc is not installed here")]


def precisions(best: Plan, space: Space, known: SearchState) -> Turned:
    """Try bfloat16 with channels_last first: it is the larger effect, and a slow model may get no further.

    Without batch norms, bfloat16 alone: torch's group norm is slow in channels_last (docs/decisions.md).
    """
    both = replace(best, precision="bfloat16", memory_format="channels_last")
    alone = replace(best, precision="bfloat16", memory_format="contiguous")
    channels_last = replace(best, precision="float32", memory_format="channels_last")
    plans = [both, channels_last, alone]
    if not known.batch_statistics and best.precision == "float32":
        last = Skipped(channels_last, "bfloat16 without it was faster") if alone in known.gained else channels_last
        return [_unless_slow(alone, space), _unless_slow(both, space), *([last] if channels_last != best else [])]
    if best.precision == "bfloat16":  # the user's own wish, and maybe a slow one
        plans.append(replace(best, precision="float32", memory_format="contiguous"))
    elif both in known.gained:
        plans.pop()  # bfloat16 without channels_last can only be slower
    turned = [_unless_slow(plan, space) for plan in plans if plan != best]
    gained = known.gained.get(both, 1.0)
    if best.precision == "float32" and gained >= FORMAT_GAIN:
        why = f"channels_last alone gains less than {FORMAT_GAIN}x, and with bfloat16 it was {gained:.2f}x"
        turned = [both, *(Skipped(plan, why) for plan in plans if plan != both)]
    return turned


def _unless_slow(plan: Plan, space: Space) -> Plan | Skipped:
    if plan.precision == "bfloat16" and not space.bfloat16:
        return Skipped(plan, "this processor has no instructions for bfloat16 (avx512_bf16, amx_bf16 or bf16)")
    return plan


def threads(best: Plan, space: Space, known: SearchState) -> Turned:
    """Try all cores, half of them, less as long as halving gains, and one."""
    counts = space.threads
    halved = {count for more, count in pairwise(counts) if replace(best, threads=more) in known.gained}
    chosen = [count for count in counts if count in halved or count >= counts[0] // 2 or count == 1]
    return [replace(best, threads=count) for count in chosen if count != best.threads]


def micro_batches(best: Plan, space: Space, known: SearchState) -> Turned:  # noqa: ARG001
    """Try the whole batch at once where the user takes less, and half of what is taken: that saves memory."""
    half = replace(best, micro_batch=math.ceil(min(best.micro_batch, known.batch_size) / 2))
    if known.batch_statistics:
        return [Skipped(half, "the model has batch norms: changing the micro-batch would change the result")]
    whole = replace(best, micro_batch=known.batch_size)
    larger = [whole] if best.micro_batch < known.batch_size <= known.most_samples else []
    return [*larger, *([half] if half.micro_batch >= MIN_MICRO_BATCH else [])]


def eval_batches(best: Plan, space: Space, known: SearchState) -> Turned:  # noqa: ARG001
    """Try smaller and larger evaluation batches, where validation takes long enough to matter."""
    sizes = [size for size in (128, 256, 512, 1024) if size <= known.most_samples and size != best.eval_batch]
    plans = [replace(best, eval_batch=size) for size in sizes]
    if known.validation_share < VALIDATION_SHARE:
        why = f"validation is {known.validation_share:.1%} of an epoch: no evaluation batch could gain more"
        return [Skipped(plan, why) for plan in plans[:1]]
    return [*plans]


def loaders(best: Plan, space: Space, known: SearchState) -> Turned:
    """Try gathering in the process itself where there are loader workers, and workers where fetching takes long."""
    if best.loader_workers:
        return [replace(best, loader_workers=0, prefetch_factor=None)]
    plans = [
        replace(best, loader_workers=count, prefetch_factor=PREFETCH)
        for count in (1, 2)
        if count <= max(1, space.threads[0])
    ]
    if known.fetch_share < FETCH_SHARE:
        why = f"fetching is {known.fetch_share:.1%} of a step: no loader could gain more"
        return [Skipped(plan, why) for plan in plans[:1]]
    fitting = [plan for plan in plans if plan.loader_workers * known.process_bytes <= known.room_bytes]
    return [_if_shared(plan, space, known) if plan in fitting else Skipped(plan, NO_ROOM) for plan in plans]


def _if_shared(plan: Plan, space: Space, known: SearchState) -> Plan | Skipped:
    fits = loader_bytes(plan, known.batch_bytes) <= space.shared_bytes
    return plan if fits else Skipped(plan, NO_SHARED_ROOM)


def prefetches(best: Plan, space: Space, known: SearchState) -> Turned:
    """Try more batches ready in each loader worker, where there are workers and steps wait for them."""
    if not best.loader_workers:
        return []
    ready = best.prefetch_factor or PREFETCH
    plans = [replace(best, prefetch_factor=count) for count in PREFETCHES if count > ready]
    if known.fetch_share < FETCH_SHARE:
        why = f"fetching is {known.fetch_share:.1%} of a step: no more batches ready could gain more"
        return [Skipped(plan, why) for plan in plans[:1]]
    why = "so many batches would not fit into the memory beside the training"
    fitting = [plan for plan in plans if _held_bytes(plan, known) <= known.room_bytes]
    return [_if_shared(plan, space, known) if plan in fitting else Skipped(plan, why) for plan in plans]


def _held_bytes(plan: Plan, known: SearchState) -> float:
    """Return the bytes of the batches that the loader workers of a plan keep ready."""
    return float(plan.loader_workers * (plan.prefetch_factor or PREFETCH) * known.batch_bytes)


def affinities(best: Plan, space: Space, known: SearchState) -> Turned:  # noqa: ARG001
    """Try staying on as many processors as there are threads, where there are more."""
    if best.affinity == "pinned" or space.processors <= best.threads:
        return []
    return [replace(best, affinity="pinned")]


def interops(best: Plan, space: Space, known: SearchState) -> Turned:  # noqa: ARG001
    """Try half of the threads as inter-operation threads, two at least."""
    half = max(2, best.threads // 2)
    return [replace(best, interop=half)] if best.interop == 1 and space.threads[0] > 1 else []


def weight_gradients(best: Plan, space: Space, known: SearchState) -> Turned:  # noqa: ARG001
    """Try matrix products for the gradients that are slow; in float32 they lost everywhere (docs/decisions.md)."""
    if best.weight_gradients == "products":
        return [replace(best, weight_gradients="library")]
    wanted = known.slow_weight_gradients and best.precision == "bfloat16"
    return [replace(best, weight_gradients="products")] if wanted else []


def compiles(best: Plan, space: Space, known: SearchState) -> Turned:
    """Try torch.compile, where the training is long enough to pay for it at the best that it has ever gained."""
    if best.compile:
        return [replace(best, compile=False)]
    plan = replace(best, compile=True)
    if not space.compiler:
        return [Skipped(plan, "torch.compile needs a C++ compiler, and there is none")]
    gained = known.training_s * (1 - 1 / COMPILE_GAIN)
    if gained < COMPILE_SECONDS:
        return [Skipped(plan, f"compiling takes about {COMPILE_SECONDS:.0f} s and could save at most {gained:.0f} s")]
    return [plan]


SPECIAL: Final[Mapping[KnobName, Mutations]] = {
    "allocator": allocators, "precision": precisions, "threads": threads, "micro_batch": micro_batches,
    "eval_batch": eval_batches, "loader": loaders, "affinity": affinities, "interop": interops, "compile": compiles,
    "weight_gradients": weight_gradients, "prefetch": prefetches,
}  # fmt: skip
"""Knobs whose values depend on the container or on measurements."""


def mutations(knob: KnobName) -> Mutations:
    """Return the mutations of a knob: its function here, else each value that its field in the plan names to try."""
    return SPECIAL.get(knob) or partial(_listed, PARTS[knob])


def _listed(parts: Mapping[str, Knob], best: Plan, space: Space, known: SearchState) -> Turned:  # noqa: ARG001
    return [
        changed(best, **{name: value})
        for name, knob in parts.items()
        for value in knob.tries
        if value != getattr(best, name)
    ]
