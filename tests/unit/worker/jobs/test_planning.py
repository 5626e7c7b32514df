"""The plan of a resumed job: kept from its checkpoint, which says what of a calibration the job asks for in vain."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue
from support.worker.contexts import ListSink, context_of

from calibration.choose import PlanChoice
from calibration.memory.model import cnn_samples
from calibration.task import Options, memory_for_training
from preflight.container.resources import detect
from preflight.contract.plan import Plan
from preflight.contract.spec import MAX_BATCH, TrainSpec
from preflight.wire import JOB_TYPE, parse_job
from training.checkpoints.format import Origin, write
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import checksum
from training.step.train_state import TrainState
from training.system.digests import Digests
from training.system.safetensors_file import TensorView
from worker.jobs.stages import planning
from worker.jobs.stages.payloads import asked_options, container_facts, resources_payload
from worker.jobs.stages.planning import select_plan

JOB: dict[str, JsonValue] = {"type": JOB_TYPE, "dataset": "digits"}
PLAN = Plan(threads=1, micro_batch=32)
NAMED: dict[str, JsonValue] = {"calibration_knobs": ["threads"]}
END = "ignored, as the job resumes under the plan of its checkpoint; use another job id to measure again"


def warnings_of(
    tmp_path: Path, store: DatasetInfo, before: dict[str, JsonValue], now: dict[str, JsonValue], plan: Plan = PLAN
) -> list[str]:
    """Leave a checkpoint of a job with the options `before`, resume it with those of `now`, return the warnings."""
    sink, resources = ListSink(), detect()
    context = context_of(tmp_path, sink)
    first, job = parse_job({**JOB, **before}), parse_job({**JOB, **now})
    facts: dict[str, JsonValue] = {"resources": container_facts(resources), "calibration": asked_options(first)}
    origin = Origin(
        spec=job.spec(), plan=plan, dataset="digits", data_sha256=checksum(store, Digests()), facts=facts
    )  # fmt: skip
    view = TensorView(dtype="F32", shape=(2,), data=memoryview(bytes(8)), width=4)
    write(context.paths.attempt, origin, TrainState(steps=9, step=3), {"model/x": view})
    choice = select_plan(context, job, job.spec(), resources, store)
    assert (choice.plan, choice.source) == (plan, "kept")
    return sink.warnings


@pytest.mark.parametrize(
    ("before", "now", "ignored"),
    [
        ({}, {"calibration_samples": 50}, "calibration_samples is"),
        ({}, {"force_calibration": True, "calibration_seconds": 60.0}, "force_calibration, calibration_seconds are"),
        ({}, NAMED, "calibration_knobs is"),
        ({"calibration_samples": 20}, {"calibration_samples": 50, "force_calibration": True},
         "force_calibration, calibration_samples are"),
        ({"calibration_samples": 50, "force_calibration": True, **NAMED},
         {"calibration_samples": 50, "force_calibration": True, **NAMED}, None),
        ({"calibration_samples": 50}, {}, None),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_a_resumed_job_says_what_it_ignores(
    tmp_path: Path, digits_store: DatasetInfo, before: dict[str, JsonValue], now: dict[str, JsonValue],
    ignored: str | None,
) -> None:  # fmt: skip
    """What its plan was chosen with is not ignored: a retry of the same request has nothing to say."""
    assert warnings_of(tmp_path, digits_store, before, now) == ([] if ignored is None else [f"{ignored} {END}"])


def test_a_resumed_job_is_warned_of_threads_beyond_the_cores(tmp_path: Path, digits_store: DatasetInfo) -> None:
    """As a new one is: it trains with them again."""
    (warning,) = warnings_of(tmp_path, digits_store, {}, {}, Plan(threads=1000, micro_batch=32))
    assert "asks for 1000 threads" in warning


def asked_of_calibration(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Measure nothing; return the options with which plans are asked for, as they are."""
    asked: list[Options] = []

    def choose(spec: TrainSpec, own: Plan, around: object, options: Options, *_: object) -> PlanChoice:  # noqa: ARG001
        asked.append(options)
        return PlanChoice(plan=own, source="own", why="")

    monkeypatch.setattr(planning, "choose_plan", choose)
    return asked


@pytest.mark.parametrize("only", [True, False])
def test_a_calibration_that_trains_nothing_is_thorough(
    tmp_path: Path, digits_store: DatasetInfo, monkeypatch: pytest.MonkeyPatch, only: bool
) -> None:
    """It may spend all of its time, however short the training would be."""
    asked = asked_of_calibration(monkeypatch)
    job = parse_job(JOB)
    select_plan(context_of(tmp_path, ListSink()), job, job.spec(), detect(), digits_store, only=only)
    (options,) = asked
    assert (options.thorough, options.advise) == (only, only)


def test_the_limits_of_a_container_say_what_follows_from_them() -> None:
    """Threads for each whole core, no loader workers, and how many samples of `cnn` the memory holds."""
    found = replace(detect(), cores=3)
    shown = resources_payload(found)
    assert (shown["threads"], shown["loader_workers"]) == (3, 0)
    assert shown["largest_batch"] == cnn_samples(memory_for_training(found))
    assert [cnn_samples(mib << 20) for mib in (300, 512, 65_536)] == [0, 414, MAX_BATCH]
