"""Which settings a tuning ends with, and what finding them costs, on simulated machines."""

import pytest
from support.simulated_training import SimulatedTraining, StepSeconds

from preflight.tuner.settings import Settings
from preflight.tuner.tuning import Known, Limits

OWN = Settings(2)


def by_threads(one: float, two: float, malloc: float = 1.0) -> StepSeconds:
    """Return steps that take so many seconds with one and two threads; with tuned malloc `malloc` times as long."""

    def step_s(settings: Settings, _: float) -> float:
        return (one if settings.threads == 1 else two) * (malloc if settings.malloc == "tuned" else 1.0)

    return step_s


@pytest.mark.parametrize("step_s", [30e-6, 0.004, 0.15, 0.8])
def test_two_threads_stay_where_they_are_faster(step_s: float) -> None:
    machine = SimulatedTraining(by_threads(1.6 * step_s, step_s))
    assert machine.run(OWN, 120).best.threads == 2
    assert machine.lost(lambda _: step_s) < 2 + 2 * step_s


def test_one_thread_is_found_beside_a_neighbour_within_a_few_steps() -> None:
    """Two threads take six times as long: nobody goes back to them for another measurement."""
    machine = SimulatedTraining(by_threads(0.55, 2.4), others=lambda _: 1.0)
    tuning = machine.run(OWN, 60)
    assert tuning.best.threads == 1
    assert sum(lap.steps for _, settings, lap in machine.laps if settings.threads == 2) <= 4
    gain = tuning.gains.by_knob["threads"]
    assert gain.low < 2.4 / 0.55 < gain.high


def test_threads_come_back_soon_after_a_neighbour_has_left() -> None:
    def step_s(settings: Settings, now: float) -> float:
        return by_threads(0.3, 1.8 if now < 60 else 0.18)(settings, now)

    machine = SimulatedTraining(step_s, others=lambda now: 1.0 if now < 60 else 0.0)
    assert machine.run(OWN, 120).best.threads == 2
    back = min(at for at, settings, _ in machine.laps if at > 60 and settings.threads == 2)
    assert back < 70
    assert ("adapted", 1, 2) in [(what, fields.get("before"), fields.get("after")) for what, fields in machine.records]


def test_sixteen_threads_on_two_processors_are_given_up() -> None:
    """OMP_NUM_THREADS=16 was set by an image: others have to be proven faster, and are."""

    def step_s(settings: Settings, _: float) -> float:
        return {1: 0.09, 2: 0.06}.get(settings.threads, 0.4)

    machine = SimulatedTraining(step_s)
    assert machine.run(Settings(16), 60, Limits(must_prove=True)).best.threads == 2


def test_under_a_quota_of_one_processor_one_thread_wins() -> None:
    machine = SimulatedTraining(by_threads(0.025, 0.033), cpus=1.0)
    assert machine.run(OWN, 60).best.threads == 1


def test_threads_of_the_users_stay_unless_others_are_proven_faster() -> None:
    level = SimulatedTraining(by_threads(0.1, 0.1), noise=0.2)
    assert level.run(Settings(1), 60, Limits(must_prove=True)).best.threads == 1


def test_a_step_of_90_s_is_not_risked_before_exploring_may_cost_that_much() -> None:
    """One slower step would cost 54 s, which is one percent of an hour and a half."""
    machine = SimulatedTraining(by_threads(144, 90, malloc=1.0))
    machine.run(OWN, 3600)
    assert {settings.threads for _, settings, _ in machine.laps} == {2}
    machine = SimulatedTraining(by_threads(90, 400), others=lambda _: 1.0)
    assert machine.run(OWN, 3600).best.threads == 1


def test_an_evaluation_between_steps_is_not_taken_for_a_slow_plan() -> None:
    def step_s(settings: Settings, now: float) -> float:
        pause = 3.0 if int(now) % 7 == 6 else 0.0
        return by_threads(0.16, 0.1)(settings, now) + pause

    machine = SimulatedTraining(step_s)
    assert machine.run(OWN, 200).best.threads == 2
    assert machine.trials().count(("threads", 1, "won")) == 0


@pytest.mark.parametrize(("malloc", "kept"), [(0.8, "tuned"), (1.25, "default")])
def test_malloc_stays_tuned_where_that_is_faster(malloc: float, kept: str) -> None:
    machine = SimulatedTraining(by_threads(0.16, 0.1, malloc=malloc))
    tuning = machine.run(OWN, 60)
    assert tuning.best.malloc == kept
    assert ("allocator" in tuning.gains.by_knob) == (kept == "tuned")


def test_fixed_thresholds_are_a_gain_of_their_own() -> None:
    """Tensors stay in the heap with them, too; tuned malloc may be slower than that, and faster than before."""

    def step_s(settings: Settings, now: float) -> float:
        return by_threads(0.16, 0.1)(settings, now) * {"untouched": 1.3, "default": 1.0, "tuned": 1.15}[settings.malloc]

    tuning = SimulatedTraining(step_s).run(OWN, 60)
    assert tuning.best.malloc == "default"
    assert tuning.gains.by_knob["allocator"].ratio == pytest.approx(1.3, abs=0.1)


def test_malloc_is_left_alone_where_memory_is_short() -> None:
    machine = SimulatedTraining(by_threads(0.16, 0.1, malloc=0.8), memory=0.8)
    assert machine.run(OWN, 30).best.malloc == "untouched"
    assert ("allocator", 2, "skipped") in machine.trials()


def test_malloc_gives_memory_back_once_it_is_short() -> None:
    """A faster allocator that keeps what is freed may not bring the limit nearer than it has to be."""
    machine = SimulatedTraining(by_threads(0.16, 0.1, malloc=0.8), growth=0.02)
    tuning = machine.run(OWN, 120)
    assert tuning.best.malloc == "default"
    assert "allocator" not in tuning.gains.by_knob
    assert machine.memory_share() == pytest.approx(0.85, abs=0.05)
    assert machine.trials().count(("allocator", 2, "lost")) == 1


def test_a_noisy_machine_costs_little() -> None:
    """Others come and go every ten seconds: each time the better number of threads is found."""

    def others(now: float) -> float:
        return 1.0 if int(now / 10) % 2 else 0.0

    def best(now: float) -> float:
        return 0.09 if others(now) else 0.05

    def step_s(settings: Settings, now: float) -> float:
        return by_threads(0.09, 0.4 if others(now) else 0.05)(settings, now)

    machine = SimulatedTraining(step_s, others=others)
    machine.run(OWN, 300)
    assert machine.lost(best) < 0.25 * 300


CALIBRATED = Limits(malloc=False, must_prove=True)


def test_a_training_as_fast_as_calibrated_is_left_alone() -> None:
    machine = SimulatedTraining(by_threads(0.016, 0.01))
    machine.run(OWN, 300, CALIBRATED, Known(step_s=0.009))
    assert {settings.threads for _, settings, _ in machine.laps} == {2}


def test_one_thread_is_found_soon_beside_a_neighbour_that_a_calibration_did_not_meet() -> None:
    """Also where two threads are as slow as calibrated, as the kernel's counters show it."""
    machine = SimulatedTraining(by_threads(0.01, 0.03), others=lambda _: 1.0)
    machine.run(OWN, 60, CALIBRATED, Known(step_s=0.008))
    assert min(at for at, settings, _ in machine.laps if settings.threads == 1) < 2
    machine = SimulatedTraining(by_threads(0.01, 0.03), others=lambda _: 1.0)
    assert machine.run(OWN, 60, CALIBRATED, Known(step_s=0.03)).best.threads == 1


def test_more_threads_come_once_the_neighbour_of_the_calibration_has_left() -> None:
    machine = SimulatedTraining(by_threads(0.016, 0.01))
    assert machine.run(Settings(1), 60, CALIBRATED, Known(step_s=0.016, others=1.0)).best.threads == 2
    stays = SimulatedTraining(by_threads(0.016, 0.06), others=lambda _: 1.0)
    assert stays.run(Settings(1), 60, CALIBRATED, Known(step_s=0.016, others=1.0)).best.threads == 1
    assert stays.trials() == []


def test_a_raised_limit_is_raced_for_at_once() -> None:
    machine = SimulatedTraining(by_threads(0.016, 0.01))
    machine.run(Settings(1), 30, CALIBRATED, Known(step_s=0.016, limit=0.5))
    assert min(at for at, settings, _ in machine.laps if settings.threads == 2) < 3


def test_what_no_counter_shows_is_tried_ever_more_rarely() -> None:
    """Both settings are as slow: a disk, say."""
    machine = SimulatedTraining(by_threads(0.05, 0.05))
    assert machine.run(OWN, 600, CALIBRATED, Known(step_s=0.01)).best.threads == 2
    assert len(machine.trials()) < 6
    assert machine.lost(lambda _: 0.05) < 6


@pytest.mark.parametrize("period", [1, 5, 30])
def test_a_neighbour_that_comes_and_goes_costs_no_more_than_it_takes_anyway(period: int) -> None:
    def others(now: float) -> float:
        return float(int(now / period) % 2)

    def step_s(settings: Settings, now: float) -> float:
        return by_threads(0.013, 0.028 if others(now) else 0.008)(settings, now)

    machine = SimulatedTraining(step_s, others=others)
    machine.run(OWN, 300, CALIBRATED, Known(step_s=0.008))
    assert machine.lost(lambda now: 0.028 if others(now) else 0.008) < 0.05 * 300


@pytest.mark.parametrize(("gain", "pinned"), [(0.9, True), (1.0, False), (1.2, False)])
def test_threads_are_pinned_where_that_is_proven_faster(gain: float, pinned: bool) -> None:
    def step_s(settings: Settings, _: float) -> float:
        return by_threads(0.1, 0.2)(settings, 0) * (gain if settings.pinned else 1.0)

    machine = SimulatedTraining(step_s, noise=0.01)
    assert machine.run(OWN, 90, Limits(malloc=False, pinned=True)).best == Settings(1, pinned=pinned)


def test_pinned_threads_are_let_go_where_a_neighbour_comes() -> None:
    """It may sit on the same processor."""

    def step_s(settings: Settings, now: float) -> float:
        beside = 2.0 if now > 60 else 0.9
        return by_threads(0.1, 0.2)(settings, 0) * (beside if settings.pinned else 1.0)

    machine = SimulatedTraining(step_s, others=lambda now: float(now > 60), noise=0.01)
    assert machine.run(OWN, 120, Limits(malloc=False, pinned=True)).best == Settings(1)
    assert max(at for at, settings, _ in machine.laps if settings.pinned) < 70
