"""What earlier versions wrote is read, without the fields that are gone; a request that uses one is refused by name."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue, TypeAdapter, ValidationError

from preflight.client.outbox import Outbox
from preflight.contract.plan import Plan
from preflight.contract.removed import in_one_process
from preflight.errors import InvalidConfig
from preflight.wire import EVENT, OwnPlan, parse_job, unflatten
from preflight.wire.results import read_result

LEAST: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "digits"}
PLAN = TypeAdapter(Plan)
OLD_PLAN: dict[str, JsonValue] = {
    "threads": 2, "processes": 1, "interop": 1, "micro_batch": 64, "eval_batch": 256, "loader_workers": 0,
    "prefetch_factor": None, "precision": "float32", "memory_format": "contiguous", "allocator": "default",
    "affinity": "free", "weight_gradients": "library", "compile": False, "device": "cpu",
}  # fmt: skip
"""As 0.25.1 wrote it."""


@pytest.mark.parametrize("value", [None, 1, 1.0])
def test_a_field_that_is_gone_is_ignored_at_its_default(value: JsonValue) -> None:
    """The request is the same as without it, by its digest, too."""
    job = parse_job({**LEAST, "plan": {"threads": 2, "processes": value}})
    assert job == parse_job({**LEAST, "plan": {"threads": 2}})
    assert job.digest() == parse_job({**LEAST, "plan": {"threads": 2}}).digest()


@pytest.mark.parametrize("value", [2, 64, 0, True, "1"])
def test_a_field_that_is_gone_is_refused_otherwise(value: JsonValue) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_job({**LEAST, "plan": {"processes": value}})
    assert refused.value.field == "plan.processes"
    assert refused.value.message == (
        f"plan.processes is {value!r}, but a training has one process; leave it out and set plan.threads, or start "
        "`preflight worker --processes N` for several jobs"
    )


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
