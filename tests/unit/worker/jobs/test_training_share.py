"""A training while other jobs have their share of the host: its threads, its pinning, its memory."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue
from support.worker.contexts import ListSink, context_of

from calibration.choose import PlanChoice
from preflight.container.resources import Resources
from preflight.contract.plan import Plan
from preflight.errors import OutOfMemory
from preflight.wire import JOB_TYPE, parse_job
from training.data.dataset_info import DatasetInfo
from training.prediction import Prediction
from worker.jobs.stages import training as training_stage
from worker.jobs.stages.training import TrainingRun
from worker.state.packing.arbiter import Arbiter, Candidate
from worker.state.packing.share import Usage

PREDICTION = Prediction(epoch_s=8.0, low_s=7.0, high_s=9.0, step_s=0.1, speeds=((1, 5.0), (2, 8.0)))
HOST = Resources(
    cores=2, quota=None, memory_bytes=8 << 30, affinity=frozenset({0, 1}), working_set_bytes=1 << 27, cores_source="",
    memory_source="", warnings=(),
)  # fmt: skip


@pytest.fixture
def neighbour(tmp_path: Path) -> Arbiter:
    """Another worker of the host, whose job runs."""
    arbiter = Arbiter(tmp_path, "neighbour", policy="throughput", look=lambda: HOST)
    begin(arbiter, "other")
    arbiter.share.begin(Usage(threads=2, speeds=PREDICTION.speeds, is_fixed=False, memory_bytes=1 << 28))
    return arbiter


def begin(arbiter: Arbiter, job_id: str) -> None:
    permission = arbiter.decide(Candidate(kind="cnn digits 128"))
    assert permission is not None
    arbiter.begin(job_id, job_id, Candidate(kind="cnn digits 128"), permission)


@pytest.fixture
def train(
    tmp_path: Path, digits_store: DatasetInfo, neighbour: Arbiter, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[dict[str, JsonValue]]]:
    """Run a training beside the neighbour; its processes end with `errors`, then well; returns their requests."""

    def run(errors: list[OutOfMemory], chosen: Plan, **fields: JsonValue) -> list[dict[str, JsonValue]]:
        arbiter = Arbiter(tmp_path, "mine", policy="throughput", look=lambda: HOST)
        begin(arbiter, "mine")
        job = parse_job({"type": JOB_TYPE, "dataset": "digits", **fields})
        context = replace(context_of(tmp_path, ListSink()), processors=arbiter.share)
        choice = PlanChoice(plan=chosen, source="cache", why="", prediction=PREDICTION)
        training = TrainingRun(
            context=context, job=job, spec=job.spec(), resources=HOST, store=digits_store, choice=choice
        )
        requests: list[dict[str, JsonValue]] = []

        def run_job_child(
            _context: object, _task: object, _module: object, body: bytes, *_: object, **__: object
        ) -> object:
            requests.append(json.loads(body))
            if errors:
                threading.Timer(0.3, neighbour.end).start()  # while this job waits for it
                raise errors.pop(0)
            return {"test_accuracy": 1.0}

        monkeypatch.setattr(training_stage, "run_job_child", run_job_child)
        training.run()
        arbiter.end()
        return requests

    return run


def field(request: dict[str, JsonValue], *names: str) -> JsonValue:
    found: JsonValue = request
    for name in names:
        assert isinstance(found, dict)
        found = found[name]
    return found


def test_a_job_killed_for_memory_while_it_shared_is_tried_again_alone(
    train: Callable[..., list[dict[str, JsonValue]]],
) -> None:
    """As it was: nothing is halved until it has run alone."""
    errors = [OutOfMemory("512 MiB of 512 are used")] * 2
    requests = train(errors, Plan(threads=2, micro_batch=32))
    assert [field(request, "plan", "micro_batch") for request in requests] == [32, 32, 16]


def test_a_job_that_asks_for_all_threads_begins_with_its_share(
    train: Callable[..., list[dict[str, JsonValue]]],
) -> None:
    """Its plan keeps them, for when it is alone; the file has its processors, and the prediction is of those."""
    (request,) = train([], Plan(threads=2, micro_batch=32), plan={"threads": 2}, calibrate=False)
    assert field(request, "plan", "threads") == 2
    assert field(request, "processors") is not None
    assert field(request, "prediction", "step_s") == pytest.approx(0.1 * 8 / 5)


def test_a_deterministic_job_is_given_the_threads_that_it_keeps(
    train: Callable[..., list[dict[str, JsonValue]]],
) -> None:
    (request,) = train([], Plan(threads=2, micro_batch=32), deterministic=True)
    assert field(request, "plan", "threads") == 1


def test_a_pinned_plan_is_not_pinned_where_others_run(train: Callable[..., list[dict[str, JsonValue]]]) -> None:
    """Two would be pinned to the same processors."""
    (request,) = train([], Plan(threads=2, micro_batch=32, affinity="pinned"))
    assert field(request, "plan", "affinity") == "free"
