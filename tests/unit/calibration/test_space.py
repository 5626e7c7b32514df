"""Which plans are worth a measurement: one knob at a time, from the best plan so far and what is known of it."""

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.search.mutations import (
    COMPILE_GAIN,
    FETCH_SHARE,
    FORMAT_GAIN,
    MIN_MICRO_BATCH,
    VALIDATION_SHARE,
    mutations,
)
from calibration.space import (
    COMPILE_SECONDS,
    PREFETCH,
    SearchState,
    Skipped,
    Space,
    Turned,
    fit_shared_memory,
    oversubscription,
    thread_counts,
)
from preflight.container.resources import Resources, detect
from preflight.contract.plan import KNOBS, Affinity, Allocator, MemoryFormat, Plan, Precision
from preflight.contract.verdicts import TrialKnob

FIELDS: dict[TrialKnob, set[str]] = {
    "precision": {"precision", "memory_format"}, "loader": {"loader_workers", "prefetch_factor"},
    "prefetch": {"prefetch_factor"},
}  # fmt: skip
"""Fields of a plan that a knob turns, where they are not named as the knob is."""
SPACE = Space(threads=(3, 2, 1), processors=4, bfloat16=True, tcmalloc=True, compiler=True)
OWN = Plan(threads=3, micro_batch=128)
ALLOCATORS: tuple[Allocator, ...] = ("default", "tcmalloc")
BOTH = replace(OWN, precision="bfloat16", memory_format="channels_last")
KNOWN = SearchState(
    batch_size=128, batch_statistics=False, slow_weight_gradients=True, fetch_share=0.3,
    validation_share=0.3, training_s=100_000.0, room_bytes=float(4 << 30), batch_bytes=1 << 20,
    process_bytes=float(300 << 20), most_samples=5000, gained={},
)  # fmt: skip
"""What makes every knob worth turning."""


def detected(root: Path, cpu_max: str, affinity: int) -> Resources:
    """Return what detection finds in a version 2 cgroup with this cpu.max."""
    files = {
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": f"{cpu_max} 100000\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return detect(root, affinity=frozenset(range(affinity)), mem_total=1 << 30)


def every_plan() -> list[Plan]:
    """Return plans with every value of what is named."""
    return [
        Plan(
            threads=threads, micro_batch=micro, precision=precision, memory_format=memory_format, allocator=allocator,
            affinity=affinity, compile=compiled, loader_workers=workers, prefetch_factor=PREFETCH if workers else None,
        )
        for threads, micro, precision, memory_format, allocator, affinity, compiled, workers in product(
            (1, 3, 7), (1, 32, 128), get_args(Precision), get_args(MemoryFormat), ALLOCATORS,
            get_args(Affinity), (False, True), (0, 2),
        )
    ]  # fmt: skip


def turned(knob: TrialKnob, best: Plan = OWN, space: Space = SPACE, known: SearchState = KNOWN) -> Turned:
    return mutations(knob)(best, space, known)


def tried(knob: TrialKnob, best: Plan = OWN, space: Space = SPACE, known: SearchState = KNOWN) -> list[Plan]:
    """Return the plans that a knob would have measured."""
    return [plan for plan in turned(knob, best, space, known) if isinstance(plan, Plan)]


def reasons(knob: TrialKnob, best: Plan = OWN, space: Space = SPACE, known: SearchState = KNOWN) -> list[str]:
    """Return why a knob leaves plans out."""
    return [plan.why for plan in turned(knob, best, space, known) if isinstance(plan, Skipped)]


def changed(plan: Plan, best: Plan) -> set[str]:
    """Return the names of the fields in which two plans differ."""
    fields = asdict(best)
    return {name for name, value in asdict(plan).items() if value != fields[name]}


@pytest.mark.parametrize(
    ("cpu_max", "affinity", "counts"),
    [("50000", 4, (1,)), ("150000", 4, (1, 2)), ("270000", 4, (2, 3, 1)), ("200000", 4, (2, 1)), ("800000", 2, (2, 1)),
     ("270000", 2, (2, 1)), ("max", 4, (4, 2, 1)), ("max", 3, (3, 1)), ("max", 1, (1,)), ("max", 12, (12, 6, 3, 1)),
     ("850000", 16, (8, 9, 4, 2, 1))],
)  # fmt: skip
def test_counts_of_containers(tmp_path: Path, cpu_max: str, affinity: int, counts: tuple[int, ...]) -> None:
    """Whole cores come first, then a broken quota rounded up, then halves down to one; affinity caps all."""
    assert thread_counts(detected(tmp_path, cpu_max, affinity)) == counts


@given(processors=st.sets(st.integers(0, 1023), min_size=1, max_size=128), quota=st.none() | st.floats(0.001, 256))
def test_counts_of_any_container(processors: set[int], quota: float | None) -> None:
    """Counts are at least 1, at most what affinity and the quota rounded up allow, distinct, whole cores first."""
    available = len(processors) if quota is None else min(float(len(processors)), quota)
    resources = Resources(
        cores=max(1, int(available)), quota=quota, memory_bytes=1 << 30, affinity=frozenset(processors),
        working_set_bytes=None, cores_source="", memory_source="", warnings=(),
    )  # fmt: skip
    counts = thread_counts(resources)
    assert counts[0] == resources.cores
    assert 1 in counts
    assert len(set(counts)) == len(counts)
    assert all(1 <= count <= len(processors) and count < available + 1 for count in counts)


def test_a_knob_turns_itself_alone() -> None:
    """What a knob yields, skipped or not, differs from the best plan, and only in the fields of that knob."""
    for best, knob in product(every_plan(), KNOBS):
        for known in (KNOWN, replace(KNOWN, fetch_share=0.0, validation_share=0.0, training_s=1.0)):
            for plan in turned(knob, best, known=known):
                plan = plan.plan if isinstance(plan, Skipped) else plan
                allowed = FIELDS.get(knob, {knob})
                assert changed(plan, best) <= allowed
                assert changed(plan, best) or (knob == "micro_batch" and best.micro_batch == 1)


def test_allocators() -> None:
    """From the default one tcmalloc, where it is installed, and never back."""
    other = replace(OWN, allocator="tcmalloc")
    assert turned("allocator") == [other]
    absent = replace(SPACE, tcmalloc=False)
    assert tried("allocator", space=absent) == []
    assert reasons("allocator", space=absent) == ["tcmalloc is not installed here"]
    assert turned("allocator", other) == []


def test_the_largest_effect_of_precision_comes_first() -> None:
    """From float32 and contiguous: both at once, then each alone."""
    known = replace(KNOWN, batch_statistics=True)
    formats = [(plan.precision, plan.memory_format) for plan in tried("precision", known=known)]
    assert formats == [("bfloat16", "channels_last"), ("float32", "channels_last"), ("bfloat16", "contiguous")]


def test_without_batch_norms_bfloat16_alone_comes_first() -> None:
    """Where it has won, channels_last is tried with it, and not without."""
    alone, last = replace(OWN, precision="bfloat16"), replace(OWN, memory_format="channels_last")
    assert tried("precision") == [alone, BOTH, last]
    known = replace(KNOWN, gained={alone: 1.4})
    assert tried("precision", known=known) == [alone, BOTH]
    assert reasons("precision", known=known) == ["bfloat16 without it was faster"]
    assert tried("precision", last) == [replace(alone, memory_format="contiguous"), BOTH]


def test_what_has_won_makes_others_needless() -> None:
    """Where both at once won, bfloat16 alone can only be slower; where they won by far, so can channels_last."""
    little, far = ({BOTH: ratio} for ratio in (FORMAT_GAIN - 0.01, FORMAT_GAIN))
    known = replace(KNOWN, batch_statistics=True, gained=little)
    assert tried("precision", known=known) == [BOTH, replace(OWN, memory_format="channels_last")]
    assert reasons("precision", known=known) == []
    known = replace(known, gained=far)
    assert tried("precision", known=known) == [BOTH]
    assert all("channels_last alone" in why for why in reasons("precision", known=known))


def test_a_processor_without_bfloat16_is_not_asked_for_it() -> None:
    """It would run, and slowly; the reason names the instructions."""
    space = replace(SPACE, bfloat16=False)
    assert tried("precision", space=space) == [replace(OWN, memory_format="channels_last")]
    assert all("no instructions for bfloat16" in why for why in reasons("precision", space=space))
    assert {plan.precision for plan in tried("precision", BOTH, space)} == {"float32"}


def test_every_other_thread_count_is_tried() -> None:
    """Each count but that of the best plan, in their order."""
    assert [plan.threads for plan in tried("threads")] == [2, 1]
    assert [plan.threads for plan in tried("threads", replace(OWN, threads=7))] == [3, 2, 1]
    assert tried("threads", replace(OWN, threads=1), replace(SPACE, threads=(1,))) == []


def test_threads_are_halved_as_long_as_it_gains() -> None:
    """Many threads of small steps wait for each other: the best count of many cores may be a quarter of them."""
    many, space = replace(OWN, threads=16), replace(SPACE, threads=(16, 8, 4, 2, 1), processors=16)

    def counts(*gained: int) -> list[int]:
        known = replace(KNOWN, gained={replace(many, threads=each): 1.2 for each in gained})
        return [plan.threads for plan in tried("threads", many, space, known)]

    assert counts() == [8, 1]
    assert counts(8) == [8, 4, 1]
    assert counts(8, 4) == [8, 4, 2, 1]
    assert counts(1) == [8, 1]


@pytest.mark.parametrize(
    ("micro", "most", "sizes"),
    [(128, 5000, [64]), (64, 5000, [128, 32]), (64, 100, [32]), (33, 5000, [128, 17]), (2 * MIN_MICRO_BATCH - 2, 128,
     [128]), (2 * MIN_MICRO_BATCH, 100, [MIN_MICRO_BATCH]), (1, 100, [])],
)  # fmt: skip
def test_micro_batches(micro: int, most: int, sizes: list[int]) -> None:
    """The whole batch where it fits and the user takes less, and half of what is taken down to the least size."""
    best, known = replace(OWN, micro_batch=micro), replace(KNOWN, most_samples=most)
    assert [plan.micro_batch for plan in tried("micro_batch", best, known=known)] == sizes


def test_evaluation_batches() -> None:
    """Those that fit and are not the user's own, where validation takes long enough to matter."""
    assert [plan.eval_batch for plan in tried("eval_batch")] == [128, 512, 1024]
    fitting = replace(KNOWN, most_samples=600)
    assert [plan.eval_batch for plan in tried("eval_batch", known=fitting)] == [128, 512]
    assert [plan.eval_batch for plan in tried("eval_batch", replace(OWN, eval_batch=1000))] == [128, 256, 512, 1024]
    short = replace(KNOWN, validation_share=VALIDATION_SHARE - 0.001)
    assert tried("eval_batch", known=short) == []
    assert len(reasons("eval_batch", known=short)) == 1
    assert turned("eval_batch", known=replace(KNOWN, most_samples=100)) == []


def test_loaders() -> None:
    """None where there are some; one and two where fetching takes long and they fit beside the training."""
    assert [(plan.loader_workers, plan.prefetch_factor) for plan in tried("loader")] == [(1, PREFETCH), (2, PREFETCH)]
    assert tried("loader", replace(OWN, loader_workers=4, prefetch_factor=8)) == [OWN]
    quick = replace(KNOWN, fetch_share=FETCH_SHARE - 0.001)
    assert tried("loader", known=quick) == []
    assert "fetching is 4.9% of a step" in reasons("loader", known=quick)[0]
    small = replace(KNOWN, room_bytes=KNOWN.process_bytes)
    assert [plan.loader_workers for plan in tried("loader", known=small)] == [1]
    assert len(reasons("loader", known=small)) == 1
    assert [plan.loader_workers for plan in tried("loader", space=replace(SPACE, threads=(1,)))] == [1]


def test_prefetching() -> None:
    """More batches than are ready, where there are loader workers, steps wait for them, and they fit."""
    assert tried("prefetch") == []
    assert reasons("prefetch") == []
    workers = replace(OWN, loader_workers=2)
    assert [plan.prefetch_factor for plan in tried("prefetch", workers)] == [4, 8]
    assert [plan.prefetch_factor for plan in tried("prefetch", replace(workers, prefetch_factor=1))] == [2, 4, 8]
    assert tried("prefetch", replace(workers, prefetch_factor=8)) == []
    quick = replace(KNOWN, fetch_share=0.049)
    assert tried("prefetch", workers, known=quick) == []
    assert "fetching is 4.9% of a step" in reasons("prefetch", workers, known=quick)[0]
    small = replace(KNOWN, room_bytes=8.0 * KNOWN.batch_bytes)
    assert [plan.prefetch_factor for plan in tried("prefetch", workers, known=small)] == [4]
    assert reasons("prefetch", workers, known=small) == [
        "so many batches would not fit into the memory beside the training"
    ]


@pytest.mark.parametrize(("threads", "interop"), [(2, 2), (5, 2), (16, 8)])
def test_half_of_the_threads_are_tried_for_inter_operation(threads: int, interop: int) -> None:
    (plan,) = turned("interop", replace(OWN, threads=threads), space=replace(SPACE, threads=(threads,)))
    assert plan == replace(OWN, threads=threads, interop=interop)


def test_where_there_is_nothing_to_pin_or_to_overlap() -> None:
    """As many threads as processors, a plan that is pinned, a single core, a second inter-operation thread."""
    assert turned("affinity", space=replace(SPACE, processors=3)) == []
    assert turned("affinity", replace(OWN, affinity="pinned")) == []
    assert turned("interop", space=replace(SPACE, threads=(1,))) == []
    assert turned("interop", replace(OWN, interop=2)) == []


def test_matrix_products_are_tried_for_wide_convolutions_in_bfloat16() -> None:
    """And taken back where the user has them."""
    products = replace(BOTH, weight_gradients="products")
    assert turned("weight_gradients", BOTH) == [products]
    assert turned("weight_gradients", products) == [BOTH]
    assert turned("weight_gradients") == []
    assert turned("weight_gradients", BOTH, known=replace(KNOWN, slow_weight_gradients=False)) == []


def test_compiling_has_to_pay_at_the_best_that_it_ever_gained() -> None:
    """And needs a compiler; where the user compiles, the plan without is tried."""
    (plan,) = tried("compile")
    assert plan == replace(OWN, compile=True)
    assert turned("compile", plan) == [OWN]
    least = COMPILE_SECONDS / (1 - 1 / COMPILE_GAIN)
    assert tried("compile", known=replace(KNOWN, training_s=least * 1.001)) == [plan]
    assert "at most" in reasons("compile", known=replace(KNOWN, training_s=least * 0.999))[0]
    assert reasons("compile", space=replace(SPACE, compiler=False)) == [
        "torch.compile needs a C++ compiler, and there is none"
    ]


@pytest.mark.parametrize(
    ("threads", "workers", "numbers"),
    [
        (3, 2, []),
        (99, 0, [("99 threads", "3 cores")]),
        (4, 7, [("4 threads", "3 cores"), ("7 loader", "3 cores")]),
    ],
)
def test_more_than_the_cores_is_warned_of(
    tmp_path: Path, threads: int, workers: int, numbers: list[tuple[str, str]]
) -> None:
    """With both numbers; a quota's fraction counts for one more."""
    own = replace(OWN, threads=threads, loader_workers=workers)
    warnings = oversubscription(own, detected(tmp_path, "270000", 4))
    assert len(warnings) == len(numbers)
    for warning, (asked, has) in zip(warnings, numbers, strict=True):
        assert asked in warning
        assert has in warning


def test_loaders_whose_batches_find_no_room_are_left_out() -> None:
    """A worker that finds none in /dev/shm is killed; 1 MiB a batch here, of which two are ready in each worker."""
    small = replace(SPACE, shared_bytes=4 << 20)
    assert [plan.loader_workers for plan in tried("loader", space=small)] == [1]
    assert reasons("loader", space=small) == ["the batches of loader workers would not fit into /dev/shm"]
    best = replace(OWN, loader_workers=1, prefetch_factor=PREFETCH)
    assert tried("prefetch", best, small) == []


def test_a_plan_whose_batches_find_no_room_trains_without_loaders() -> None:
    """The user's own, too, with what it would have needed and how a container gets it."""
    own = replace(OWN, loader_workers=2, prefetch_factor=4)
    assert fit_shared_memory(own, 1 << 20, 10 << 20) == (own, None)
    assert fit_shared_memory(OWN, 1 << 40, 0) == (OWN, None)
    plan, warning = fit_shared_memory(own, 1 << 20, (10 << 20) - 1)
    assert plan == OWN
    assert str(warning).startswith(
        "2 loader workers with 4 batches each need 10 MiB of shared memory, but /dev/shm has 9 MiB free: the training "
        "gathers its batches itself; give the container more (docker run --shm-size 1g;"
    )
