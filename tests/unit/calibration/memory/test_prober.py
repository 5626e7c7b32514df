"""How much fits: predicted from two sizes before any larger one is tried, and proven on simulated memory."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.calibration.simulated import MIB, OWN, Memoryless, Simulated

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.memory.model import SAFE, Memory, MemoryModel, equal_piece
from calibration.memory.prober import ENOUGH, LINE, PRECISION, MemoryProber
from calibration.result import MemoryProbe
from preflight.contract.plan import Plan
from preflight.errors import OutOfMemory

LARGE = replace(OWN, micro_batch=4096, eval_batch=1)
"""A plan that asks for more than fits, whatever the batch."""
Bytes = Callable[[int], int]


def linear(base_mib: float, sample_mib: float) -> Bytes:
    """Return memory that grows with the micro-batch."""
    return lambda size: int(base_mib * MIB + size * sample_mib * MIB)


def laboratory(memory: Bytes, *, allowed_mib: int | None = None, statistics: bool = False) -> Simulated:
    """Return a laboratory that kills above `allowed_mib`."""
    return Simulated(
        memory=lambda plan: memory(plan.micro_batch), statistics=statistics,
        allowed=1 << 62 if allowed_mib is None else allowed_mib * MIB,
    )  # fmt: skip


def explorer(
    lab: Simulated, batch_size: int, budget_mib: int, *, own: Plan | None = None, records: Memoryless | None = None
) -> MemoryProber:
    """Return an exploration of the user's plan, by default one that takes the whole batch at once."""
    model = MemoryModel(batch_size=batch_size, budget_bytes=budget_mib * MIB)
    own = own or replace(OWN, micro_batch=batch_size)
    return MemoryProber(own=own, threads=own.threads, model=model, backend=lab, records=records or Memoryless())


def explored(
    lab: Simulated, batch_size: int, budget_mib: int, *, own: Plan | None = None, records: Memoryless | None = None
) -> Memory:
    return explorer(lab, batch_size, budget_mib, own=own, records=records).explore()


def sizes_run(lab: Simulated) -> list[int]:
    """Return the micro-batches that ran, in this order."""
    return [plan.micro_batch for plan in lab.ran]


def phases(memory: Memory) -> list[tuple[str, int, str]]:
    """Return phase, size and outcome of each probe."""
    return [(probe.phase, probe.micro_batch, probe.outcome) for probe in memory.fit.probes]


# --- what is predicted


def test_two_sizes_make_the_line() -> None:
    """The whole batch is predicted by it, and not run; its step is estimated from the largest size of the line."""
    lab = laboratory(linear(300, 0.5))
    lab.speed = lambda _: 0.020
    memory = explored(lab, 512, 4096)
    assert sizes_run(lab) == list(LINE)
    assert memory.fit.base_bytes == pytest.approx(300 * MIB)
    assert memory.fit.sample_bytes == pytest.approx(0.5 * MIB)
    assert (memory.fit.max_feasible, memory.fit.capped) == (512, True)
    assert memory.fit.probes[-1] == MemoryProbe(
        phase="1A", micro_batch=512, predicted_bytes=556 * MIB, peak_bytes=None, outcome="fits"
    )
    assert (memory.plan.micro_batch, memory.note) == (512, "")
    assert memory.step_s == pytest.approx(0.020 * 512 / 128)


@pytest.mark.parametrize(
    ("micro_batch", "peak_mib", "known_mib", "outcome"),
    [(512, 600, 600, "fits"), (512, 5000, 5000, "over"), (64, 400, None, "fits")],
)
def test_a_measured_peak_takes_the_place_of_the_predicted_one(
    micro_batch: int, peak_mib: int, known_mib: int | None, outcome: str
) -> None:
    """The probe of the cap says what the measurement of the plan took, if the user takes the whole batch at once."""
    memory = explored(laboratory(linear(300, 0.5)), 512, 4096, own=replace(OWN, micro_batch=micro_batch))
    memory.verified(peak_mib * MIB)
    assert memory.fit.probes[-1].peak_bytes == (None if known_mib is None else known_mib * MIB)
    assert [probe.outcome for probe in memory.fit.probes] == ["fits", "fits", outcome]


def test_only_the_first_size_is_kept_above_what_is_safe() -> None:
    """All larger ones would take more: none is run. Beside a size that is safe, one that is not is given up."""
    lab = laboratory(linear(370, 1.4))
    memory = explored(lab, 128, 421)
    assert sizes_run(lab) == [8]
    assert memory.fit.max_feasible == 8
    assert phases(memory)[:2] == [("line", 8, "fits"), ("line", 32, "refused")]
    lab = laboratory(linear(300, 5), allowed_mib=421)
    memory = explored(lab, 128, 421)
    assert sizes_run(lab) == [8, 32, 16]
    assert phases(memory)[3:] == [("1C", 16, "over")]
    assert memory.fit.max_feasible == 8


def test_doubling_ends_where_the_line_refuses() -> None:
    """1A refuses the cap, 1B doubles to 60 % of the budget, 1C bisects; what is above 85 % by the line never runs."""
    lab = laboratory(linear(200, 2))
    memory = explored(lab, 1021, 1000)  # a prime: no equal pieces, so that every size is of use
    most = int((SAFE * 1000 - 200) / 2)
    assert phases(memory)[:5] == [
        ("line", 8, "fits"), ("line", 32, "fits"), ("1A", 1021, "refused"), ("1B", 64, "fits"), ("1B", 128, "fits"),
    ]  # fmt: skip
    assert {phase for phase, *_ in phases(memory)[5:]} == {"1B", "1C"}
    *_, last, answer = sizes_run(lab)
    assert linear(200, 2)(last) >= ENOUGH * 1000 * MIB > linear(200, 2)(last // 2)
    assert memory.fit.max_feasible == most == answer == max(sizes_run(lab)) == 325
    assert memory.fit.capped is False
    for probe in memory.fit.probes:
        if probe.outcome == "refused":
            assert probe.predicted_bytes is not None
            assert probe.predicted_bytes > SAFE * 1000 * MIB
            assert probe.peak_bytes is None
    roomy = laboratory(linear(500, 1))  # twice 128 would fit, but 128 take 60 % of the budget
    explored(roomy, 1021, 1000)
    assert sizes_run(roomy)[-2:] == [128, 350]


@pytest.mark.parametrize(("allowed_mib", "feasible", "outcome"), [(None, 128, "fits"), (800, 64, "killed")])
def test_a_slow_batch_that_may_not_fit_is_run(allowed_mib: int | None, feasible: int, outcome: str) -> None:
    """At 83 % by the line: what is measured of a slow model are parts of a batch, which would not verify it."""
    lab = laboratory(linear(500, 2.6), allowed_mib=allowed_mib)
    lab.speed = lambda _: 7.5
    memory = explored(lab, 128, 1000)
    assert ("1A", 128, outcome) in phases(memory)
    assert sizes_run(lab)[:3] == [*LINE, 128]
    assert memory.plan.micro_batch == memory.fit.max_feasible == feasible


def test_only_equal_pieces_are_tried() -> None:
    """Of 1,024, where 325 would fit: 256 are run, and nothing between that and 512."""
    lab = laboratory(linear(200, 2))
    memory = explored(lab, 1024, 1000)
    assert sizes_run(lab) == [*LINE, 64, 128, 256]
    assert (memory.fit.max_feasible, memory.plan.micro_batch) == (256, 256)
    assert [probe.micro_batch for probe in memory.fit.probes if probe.outcome == "refused"] == [1024, 512]


@pytest.mark.parametrize("larger_mib", [300, 290])
def test_flat_memory_is_no_line_to_divide_by(larger_mib: int) -> None:
    """Where a larger micro-batch takes no more, or less by the noise, everything fits, the user's evaluations too."""
    memory = explored(laboratory(lambda size: (300 if size == 8 else larger_mib) * MIB), 512, 400)
    assert (memory.fit.max_feasible, memory.fit.sample_bytes) == (512, 0)
    assert memory.plan == replace(OWN, micro_batch=512)


# --- what does not go as predicted


def kinked(sample_mib: float, more_mib: int) -> Bytes:
    """Return memory that grows faster than the line beyond 100 samples."""
    return lambda size: linear(200, sample_mib)(size) + (more_mib * MIB if size > 100 else 0)


@pytest.mark.parametrize(("allowed_mib", "outcome"), [(None, "over"), (1000, "killed")])
def test_memory_beyond_the_line_is_measured(allowed_mib: int | None, outcome: str) -> None:
    """A size that takes more than was predicted, or is killed for it, does not fit; the answer lies below it."""
    memory = explored(laboratory(kinked(1, 800), allowed_mib=allowed_mib), 1024, 1000)
    assert ("1B", 128, outcome) in phases(memory)
    assert 64 <= memory.fit.max_feasible <= 100
    assert memory.plan.micro_batch <= memory.fit.max_feasible


def test_a_kill_of_the_plan_itself_is_told_to_the_exploration() -> None:
    """What the cap promised and the measurement did not keep is looked for again, below it; more than once."""
    exploring = explorer(laboratory(kinked(0.5, 2000), allowed_mib=1000), 512, 1000)
    assert exploring.explore().plan.micro_batch == 512
    memory = exploring.killed(512)
    assert [probe for probe in phases(memory) if probe[0] == "1A"] == [("1A", 512, "killed")]
    assert 64 <= memory.fit.max_feasible <= 100
    assert memory.plan.micro_batch == 64
    again = exploring.killed(64)
    assert 32 <= again.plan.micro_batch < 64
    assert again.fit.max_feasible < 64


def test_a_kill_of_a_smaller_piece_overrules_the_cap() -> None:
    """Where the user's 64 of 512 are killed, 512 are not said to fit."""
    exploring = explorer(laboratory(linear(200, 0.5)), 512, 1000, own=replace(OWN, micro_batch=64))
    assert exploring.explore().fit.max_feasible == 512
    memory = exploring.killed(64)
    assert memory.plan.micro_batch <= memory.fit.max_feasible < 64
    assert all(probe.outcome != "fits" for probe in memory.fit.probes if probe.micro_batch >= 64)


def test_a_kill_of_the_smallest_known_size_leaves_one_sample() -> None:
    """When nothing that ran can be relied on any more, one sample is tried."""
    lab = laboratory(linear(200, 0.5))
    exploring = explorer(lab, 8, 1000)
    exploring.explore()
    memory = exploring.killed(8)
    assert memory.plan.micro_batch < 8
    assert 1 in sizes_run(lab)


def test_the_first_probe_may_be_killed() -> None:
    """Then one sample is tried, and sizes are doubled from there."""
    lab = laboratory(linear(100, 20), allowed_mib=240)
    memory = explored(lab, 128, 240)
    assert sizes_run(lab)[:2] == [8, 1]
    assert phases(memory)[:3] == [("line", 8, "killed"), ("line", 1, "fits"), ("1A", 128, "refused")]
    assert memory.fit.max_feasible in (4, 5)
    assert memory.plan.micro_batch == 4
    assert "a micro-batch of 128 needs about 2660 MiB, but 204 MiB are safe to use" in memory.note


@pytest.mark.parametrize("batch_size", [1, 2, 128])
def test_a_kill_of_one_sample_is_out_of_memory(batch_size: int) -> None:
    """It names what may be used and what to do; one sample is not tried twice."""
    lab = laboratory(linear(300, 1), allowed_mib=200)
    with pytest.raises(OutOfMemory, match=r"one sample was killed for memory, of which 200 MiB may be used; give") as e:
        explored(lab, batch_size, 200)
    assert "smaller model" in e.value.message
    assert sizes_run(lab).count(1) == 1


def test_one_sample_above_the_budget_is_no_kill() -> None:
    """It ran, so the training may run, too: the message has the figures, and no job fails for it."""
    with pytest.raises(WorkerLost, match="takes 301 MiB of memory, of which 200 MiB may be used"):
        explored(laboratory(linear(300, 1)), 128, 200)


@pytest.mark.parametrize("error", [WorkerLost("somebody killed it"), PlanFailed("RuntimeError: no")])
def test_other_failures_are_not_taken_for_memory(error: Exception) -> None:
    """A process that is lost for another reason, and a plan that does not run, come out as they are."""
    lab = laboratory(linear(300, 1))
    lab.fails = lambda _: error
    with pytest.raises(type(error), match=str(error)):
        explored(lab, 128, 4096)


# --- the user's plan in pieces


@pytest.mark.parametrize(
    ("batch_size", "most", "piece"),
    [(128, 128, 128), (128, 127, 64), (100, 49, 25), (97, 96, 96), (9, 4, 3), (1, 1, 1)],
)
def test_pieces_are_equal_where_that_costs_little(batch_size: int, most: int, piece: int) -> None:
    """The largest divisor that fits; where that is less than half of what fits, unequal pieces."""
    assert equal_piece(batch_size, most) == piece


@given(batch_size=st.integers(1, 2000), data=st.data())
def test_a_piece_fits_and_is_no_mere_crumb(batch_size: int, data: st.DataObject) -> None:
    """Any piece is at most what fits and at least half of it."""
    most = data.draw(st.integers(1, batch_size))
    assert most / 2 <= equal_piece(batch_size, most) <= most


@pytest.mark.parametrize("statistics", [True, False])
def test_a_plan_that_does_not_fit_is_taken_in_pieces(statistics: bool) -> None:
    """The note has figures, and names the batch norms where there are any: for them it is another training."""
    own = replace(OWN, micro_batch=1024, eval_batch=1000)
    memory = explored(laboratory(linear(200, 2), statistics=statistics), 1024, 1000, own=own)
    assert memory.plan == replace(OWN, micro_batch=256, eval_batch=325)
    assert "of 1024 needs about 2248 MiB, but 850 MiB are safe to use, so that 256 are taken at a time" in memory.note
    assert ("; batch norms see only those" in memory.note) is statistics
    assert memory.batch_statistics is statistics


def test_a_large_evaluation_is_taken_in_pieces() -> None:
    """The evaluation batch is bounded by the same line, even where the training fits."""
    memory = explored(laboratory(linear(200, 1)), 128, 1000, own=replace(OWN, eval_batch=1000))
    assert memory.plan == replace(OWN, eval_batch=650)
    assert memory.note == "an evaluation takes at most 650 samples at a time"
    assert memory.most_samples == 650


def test_a_plan_that_fits_is_left_alone() -> None:
    """Whatever the user asked for is what is measured, where it fits."""
    own = Plan(threads=1, micro_batch=48, eval_batch=777, allocator="tcmalloc", memory_format="channels_last")
    lab = laboratory(linear(200, 0.1))
    assert explored(lab, 128, 4096, own=own).plan == own
    assert {replace(plan, micro_batch=48) for plan in lab.ran} == {own}


# --- what earlier calibrations did not survive


def test_a_suspect_is_run_only_where_the_line_says_that_it_is_small() -> None:
    """A cap below 60 % of the budget was no kill for memory; above, it is not tried again."""
    for budget_mib, feasible in ((4096, 512), (800, 256)):
        records = Memoryless(suspects={replace(OWN, micro_batch=512)})
        memory = explored(laboratory(linear(300, 0.5)), 512, budget_mib, records=records)
        assert feasible <= memory.fit.max_feasible <= (512 if feasible == 512 else 511)
        assert memory.plan.micro_batch == feasible


@pytest.mark.parametrize("crashed_before", [8, 32, 2, 1, 20])
def test_a_suspect_of_the_line_does_not_shrink_the_plan(crashed_before: int) -> None:
    """A container that was evicted amid the first probe leaves a suspect; smaller sizes clear it of the charge."""
    lab, records = laboratory(linear(300, 0.5)), Memoryless(suspects={replace(OWN, micro_batch=crashed_before)})
    memory = explored(lab, 512, 4096, records=records)
    assert memory.plan.micro_batch >= (256 if crashed_before == 2 else 512)  # below 2 there is one size, and so no line
    assert crashed_before == 1 or crashed_before not in sizes_run(lab)[:1]


def test_no_size_beyond_a_suspect_is_run_without_a_line() -> None:
    """Where the suspect was memory indeed, what is run first is well below it."""
    lab = laboratory(linear(100, 20), allowed_mib=240)
    memory = explored(lab, 128, 240, records=Memoryless(suspects={replace(OWN, micro_batch=8)}))
    assert sizes_run(lab)[:2] == [2, 4]
    assert max(sizes_run(lab)) < 8
    assert memory.plan.micro_batch == 4


def test_suspicion_alone_is_not_out_of_memory() -> None:
    """One sample is run whatever is suspected of it: a job does not fail for what happened to another."""
    suspects = {replace(OWN, micro_batch=size) for size in range(1, 129)}
    lab = laboratory(linear(300, 0.5))
    assert explored(lab, 128, 4096, records=Memoryless(suspects=suspects)).fit.max_feasible >= 1
    assert 1 in sizes_run(lab)


def test_every_probe_is_on_record_before_it_runs() -> None:
    """And off it when its process alone was lost, or it ended well."""
    records = Memoryless()
    lab = laboratory(linear(100, 20), allowed_mib=240)
    lab.fails = lambda plan: None if plan in records.attempted else AssertionError(plan)
    explored(lab, 128, 240, records=records)
    assert records.attempted == records.survivors == lab.ran


# --- any memory


@given(
    base=st.integers(50, 2000), sample=st.floats(0.01, 50), batch_size=st.integers(1, 2048),
    budget=st.integers(100, 8192),
)  # fmt: skip
def test_what_is_said_to_fit_fits(base: int, sample: float, batch_size: int, budget: int) -> None:
    """Of linear memory: never more than fits, nothing above the limit is run, and nearly all that is safe is found."""
    memory_of = linear(base, sample)
    assume(memory_of(1) <= budget * MIB)
    lab = laboratory(memory_of, allowed_mib=budget)
    memory = explored(lab, batch_size, budget, own=replace(LARGE, micro_batch=batch_size))
    feasible = memory.fit.max_feasible
    assert 1 <= feasible <= batch_size
    assert memory_of(feasible) <= budget * MIB
    assert memory.plan.micro_batch <= feasible
    safe = min(batch_size, int((SAFE * budget * MIB - memory_of(0)) / (sample * MIB)))
    assert feasible >= (1 - 2 / PRECISION) * safe - 1
    assert 2 * feasible >= safe
    assert len(lab.ran) <= 20


@given(
    data=st.data(), batch_size=st.integers(1, 1024), budget=st.integers(300, 4096),
    steps=st.lists(st.integers(0, 400), min_size=1, max_size=12),
)  # fmt: skip
def test_any_growing_memory_is_explored_to_an_end(
    data: st.DataObject, batch_size: int, budget: int, steps: list[int]
) -> None:
    """Whatever the curve: it ends, what ran and fitted is what is relied on, and a kill costs that size alone."""
    kinks = [data.draw(st.integers(1, 1024)) for _ in steps]

    def memory_of(size: int) -> int:
        return MIB * (100 + sum(step for kink, step in zip(kinks, steps, strict=True) if size >= kink))

    assume(memory_of(1) <= budget * MIB)
    exploring = explorer(laboratory(memory_of, allowed_mib=budget), batch_size, budget)
    memory = exploring.explore()
    while memory_of(memory.plan.micro_batch) > budget * MIB:  # what the measurement of the plan would find out
        memory = exploring.killed(memory.plan.micro_batch)
    assert 1 <= memory.plan.micro_batch <= memory.fit.max_feasible <= batch_size
