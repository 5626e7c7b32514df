"""What earlier versions wrote is read, without the fields that are gone; a request that uses one is refused by name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue, TypeAdapter, ValidationError

from preflight.client.outbox import Outbox
from preflight.contract.plan import Plan
from preflight.contract.removed import in_one_process
from preflight.errors import InvalidConfig
from preflight.wire import EVENT, OwnPlan, parse_job, unflatten
from preflight.wire.job import SPEC
from preflight.wire.results import read_result

LEAST: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "digits"}
PLAN = TypeAdapter(Plan)
OLD_PLAN: dict[str, JsonValue] = {
    "threads": 2, "processes": 1, "interop": 1, "micro_batch": 64, "eval_batch": 256, "loader_workers": 0,
    "prefetch_factor": None, "precision": "float32", "memory_format": "contiguous", "allocator": "default",
    "affinity": "free", "weight_gradients": "library", "compile": False, "device": "cpu",
}  # fmt: skip
"""As 0.25.1 wrote it."""


IGNORED: list[tuple[str, JsonValue]] = [
    ("plan.processes", None), ("plan.processes", 1), ("plan.processes", 1.0), ("average_every", 1),
]  # fmt: skip
WORDS = {
    "plan.processes": "a training has one process; leave it out and set plan.threads, or start "
    "`preflight worker --processes N` for several jobs",
    "average_every": "workers average gradients, at every step; leave it out",
}
REFUSED: list[tuple[str, JsonValue]] = [
    *(("plan.processes", value) for value in (2, 64, 0, True, "1")),
    *(("average_every", value) for value in (8, 0, None, True, 1.5)),
]


def with_field(field: str, value: JsonValue) -> dict[str, JsonValue]:
    """Return a job with a field that is gone."""
    if field == "plan.processes":
        return {**LEAST, "plan": {"threads": 2, "processes": value}}
    return {**LEAST, "workers": 2, field: value}


def without_field(field: str) -> dict[str, JsonValue]:
    """Return the same job without it."""
    return {**LEAST, "plan": {"threads": 2}} if field == "plan.processes" else {**LEAST, "workers": 2}


@pytest.mark.parametrize(("field", "value"), IGNORED)
def test_a_field_that_is_gone_is_ignored_at_its_default(field: str, value: JsonValue) -> None:
    """The request is the same as without it, by its digest, too."""
    job, same = parse_job(with_field(field, value)), parse_job(without_field(field))
    assert job == same
    assert job.digest() == same.digest()


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_field_that_is_gone_is_refused_otherwise(field: str, value: JsonValue) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_job(with_field(field, value))
    assert refused.value.field == field
    assert refused.value.message == f"{field} is {value!r}, but {WORDS[field]}"


def test_a_stored_spec_is_read_without_what_is_gone() -> None:
    """As checkpoints, and requests to export or report, have it."""
    spec = replace(parse_job({**LEAST, "recipe": "balanced"}).spec(), patience=3)
    stored = {**SPEC.dump_python(spec, mode="json"), "average_every": 1}
    assert SPEC.validate_json(json.dumps(stored)) == spec
    with pytest.raises(ValidationError, match="average_every is 8"):
        SPEC.validate_json(json.dumps({**stored, "average_every": 8}))


def test_knobs_that_are_gone_are_ignored() -> None:
    """The others are turned as before; where none is left, none is."""
    assert parse_job({**LEAST, "calibration_knobs": ["threads", "processes"]}).calibration_knobs == ("threads",)
    assert parse_job({**LEAST, "calibration_knobs": ["processes"]}).calibration_knobs == ()
    with pytest.raises(InvalidConfig, match=r"calibration_knobs\.0 is None"):
        parse_job({**LEAST, "calibration_knobs": [None]})


def test_a_stored_plan_is_read_without_what_is_gone() -> None:
    """One that depended on it is of another version, which every reader of plans handles."""
    plan = PLAN.validate_json(json.dumps(OLD_PLAN))
    assert plan == Plan(threads=2, micro_batch=64)
    with pytest.raises(ValidationError, match="a training has one process"):
        PLAN.validate_json(json.dumps({**OLD_PLAN, "processes": 2}))


def test_one_process_has_the_threads_of_several_and_micro_batches_of_their_share() -> None:
    """So that batch norms see as many samples at once as before, and all cores are in use."""
    found = in_one_process({**OLD_PLAN, "processes": 3}, 64)
    assert PLAN.validate_json(json.dumps(found)) == Plan(threads=6, micro_batch=22)
    assert in_one_process(OLD_PLAN, 64) == OLD_PLAN
    assert in_one_process("plan", 64) == "plan"


def test_a_result_with_a_plan_of_several_processes_is_read() -> None:
    result = {
        "type": "preflight.result.v1", "job_id": "job", "attempt": 1, "status": "finished", "test_accuracy": 0.99,
        "plan": {**OLD_PLAN, "processes": 2},
    }  # fmt: skip
    assert read_result(json.dumps(result)).plan == Plan(threads=2, micro_batch=64)


@pytest.mark.parametrize("processes", [1, 2])
def test_events_of_several_processes_are_read(processes: int) -> None:
    """From a stream and as JSON; a trial of the knob that is gone has no knob."""
    fields: dict[str, JsonValue] = {
        **{name: value for name, value in OLD_PLAN.items() if value is not None}, "processes": processes,
        "v": 1, "seq": 1, "job_id": "job", "attempt": 1, "ts": 1e9, "type": "calibration_trial", "knob": "processes",
        "steps": 4, "won": True, "note": "",
    }  # fmt: skip
    event = EVENT.validate_json(json.dumps(fields))
    record = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    assert unflatten(record) == event
    said = event.model_dump()
    assert (said["knob"], said["threads"], "processes" in said) == (None, 2, False)


def test_a_job_in_an_outbox_is_read(tmp_path: Path) -> None:
    """Kept by a client of 0.25.1 while Redis was away; one that no worker would take holds up no other."""
    outbox = Outbox(tmp_path)
    own: dict[str, JsonValue] = {**dict.fromkeys(OwnPlan.model_fields), "processes": 1, "threads": 2}
    outbox.save("job", {**LEAST, "plan": own}, 600)
    found = outbox.find("job")
    assert found is not None
    assert found.job == parse_job({**LEAST, "plan": {"threads": 2}})
    outbox.save("refused", {**LEAST, "plan": {"processes": 2}}, 600)
    assert outbox.find("refused") is None
