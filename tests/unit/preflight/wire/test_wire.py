"""The contract: accepted and refused jobs, error messages, events and schemas."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from preflight.contract.plan import KNOBS, TYPES
from preflight.contract.spec import DEFAULTS, TrainSpec
from preflight.contract.verdicts import TrialKnob
from preflight.errors import InvalidConfig
from preflight.wire import (
    JOB_TYPE,
    MAX_JOB_BYTES,
    TERMINAL_EVENTS,
    Event,
    PlanFields,
    TrainJob,
    is_job_id,
    parse_job,
)
from preflight.wire.json_schema import schemas

LEAST: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "epochs": 1}


def refusal(**fields: JsonValue) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        parse_job({**LEAST, **fields})
    return caught.value


def test_four_fields_make_a_complete_job() -> None:
    """Everything else has a default, and the defaults are those of TrainSpec."""
    job = parse_job({**LEAST})
    assert job.job_id is None
    assert job.calibrate
    assert job.spec() == DEFAULTS


def test_every_field_of_the_spec_can_be_sent() -> None:
    """The wire format leaves out nothing that decides the result."""
    assert set(TrainSpec.__dataclass_fields__) <= set(TrainJob.model_fields)
    job = parse_job({**LEAST, "augmentation": {"rotate_degrees": 10}, "seed": 7, "optimizer": "sgd"})
    assert (job.spec().augmentation.rotate_degrees, job.spec().seed, job.spec().optimizer) == (10, 7, "sgd")


def test_lengths_that_need_no_data_set_are_held_against_one_another_at_once() -> None:
    """Two samples of a pass or an epoch say how many steps there are; those of a recipe do, too."""
    refused = refusal(train_samples=1_280, max_steps=11)
    assert refused.message == "max_steps is 11, but epochs is 1, which makes 10 steps; use at most 10, or more epochs"
    assert refused.field == "max_steps"
    assert parse_job({**LEAST, "max_steps": 11}).spec().max_steps == 11
    with pytest.raises(InvalidConfig, match="max_steps is 171, but epochs is 1, which makes 170 steps"):
        parse_job({"type": JOB_TYPE, "dataset": "mnist", "recipe": "fast", "max_steps": 171})


def test_whole_numbers_may_be_written_with_a_fraction() -> None:
    """JSON Schema calls 201.0 an integer, and some languages write it so; other fractions stay what they are."""
    job = parse_job({**LEAST, "epochs": 201.0, "seed": -0.0, "momentum": 1e-1, "plan": {"threads": 2e0}})
    assert (job.epochs, job.seed, job.momentum, job.plan.threads) == (201, 0, 0.1, 2)
    assert (type(job.epochs), type(job.seed)) == (int, int)


@pytest.mark.parametrize(("field", "value", "words"), [
    ("epochs", 0, "epochs is 0, but must be at least 1"),
    ("epochs", 1.5, "epochs is 1.5, but must be a whole number at least 1 and at most 10000"),
    ("epochs", 1e300, "epochs is 1e+300, but must be a whole number at least 1 and at most 10000"),
    ("epochs", float("nan"), "epochs is nan, but must be a whole number at least 1 and at most 10000"),
    ("epochs", "3", "epochs is '3', but must be a whole number at least 1 and at most 10000"),
    ("epochs", True, "epochs is True, but must be a whole number at least 1 and at most 10000"),
    ("train_samples", 10**8, "train_samples is 100000000, but must be at most 10000000"),
    ("train_samples", 100, "train_samples is 100, less than a batch of 128; use at least 128"),
    ("epoch_samples", 100, "epoch_samples is 100, less than a batch of 128; use at least 128"),
    ("max_steps", 0, "max_steps is 0, but must be at least 1"),
    ("max_steps", 10**10, "max_steps is 10000000000, but must be at most 1000000000"),
    ("batch_size", 10**9, "batch_size is 1000000000, but must be at most 65536"),
    ("epoch", 3, "'epoch' is not a field (did you mean 'epochs'?); remove it or correct its name"),
    ("type", "preflight.train.v2", "type is 'preflight.train.v2', but this version reads 'preflight.train.v1'"),
    ("dataset", "minst", "dataset 'minst' is not known (did you mean 'mnist'?); use one of"),
    ("model", "resnet81", "model 'resnet81' is not known (did you mean 'resnet18'?); use one of"),
    ("model", "os:system", "model is 'os:system', but must be text that matches"),
    ("learning_rate", float("inf"), "learning_rate is inf, but must be a finite number more than 0"),
    ("optimizer", "lion", "optimizer is 'lion', but must be one of 'adamw', 'sgd' or 'muon'"),
    ("class_weights", "auto", "class_weights is 'auto', but must be one of 'none' or 'balanced'"),
    ("sampler", "balance", "one of 'shuffle' or 'balanced' (did you mean 'balanced'?)"),
    ("metric", "f1", "metric is 'f1', but must be one of 'accuracy' or 'macro_f1'"),
    ("augmentation", {"rotate": 3}, "'rotate' is not a field (did you mean 'rotate_degrees'?)"),
    ("augmentation", 3, "augmentation is 3, but must be an object"),
    ("plan", {"threads": 0}, "plan.threads is 0, but must be at least 1"),
    ("plan", {"treads": 1}, "'treads' is not a field (did you mean 'threads'?)"),
    ("workers", 0, "workers is 0, but must be at least 1"),
    ("workers", 10**6, "workers is 1000000, but must be at most 64"),
    ("workers", "2", "workers is '2', but must be a whole number at least 1 and at most 64"),
    ("workers", {"min": 0, "max": 2}, "workers.min is 0, but must be at least 1"),
    ("workers", {"min": 1, "max": 1.5}, "workers.max is 1.5, but must be a whole number at least 1 and at most 64"),
    ("workers", {"min": 2}, "workers.max is missing; add it"),
    ("workers", {"min": 3, "max": 2}, "workers is {'min': 3, 'max': 2}: min may be at most max, 2; "),
    ("workers", {"min": 1, "max": 2, "maxi": 1}, "'maxi' is not a field (did you mean 'max'?)"),
    ("calibration_seconds", 0, "calibration_seconds is 0, but must be more than 0"),
    ("calibration_seconds", 3601, "calibration_seconds is 3601, but must be at most 3600"),
    ("calibration_knobs", ["threads", "precison"], "calibration_knobs.1 is 'precison', but must be one of "
     "'precision', 'allocator', 'threads', 'micro_batch', 'loader', 'prefetch', 'weight_gradients', "
     "'eval_batch', 'affinity', 'interop' or 'compile' (did you mean 'precision'?)"),
    ("calibration_knobs", ["own"], "calibration_knobs.0 is 'own', but must be one of"),
    ("calibration_knobs", "threads", "calibration_knobs is 'threads'"),
])  # fmt: skip
def test_bad_values_are_named_with_their_bound(field: str, value: JsonValue, words: str) -> None:
    error = refusal(**{field: value})
    assert words in error.message
    assert "\n" not in error.message
    assert error.reason == "invalid_config"
    assert not error.retry


@pytest.mark.parametrize(("workers", "bounds"), [(None, (1, 1)), (3, (3, 3)), ({"min": 1, "max": 4}, (1, 4))])
def test_a_number_of_workers_is_exactly_so_many(workers: JsonValue, bounds: tuple[int, int]) -> None:
    group = parse_job({**LEAST, **({} if workers is None else {"workers": workers})}).group
    assert (group.min, group.max) == bounds


def test_equal_bounds_are_a_number() -> None:
    """Requests with the same meaning have the same digest, and an id may stand for both."""
    plain, bounds = (parse_job({**LEAST, "workers": workers}) for workers in (2, {"min": 2, "max": 2}))
    assert bounds.workers == 2
    assert plain.digest() == bounds.digest() != parse_job({**LEAST, "workers": 3}).digest()
    assert parse_job({**LEAST, "workers": {"min": 1, "max": 1}}).digest() == parse_job(LEAST).digest()


def test_a_deterministic_job_has_one_number_of_workers() -> None:
    """Its weights depend on it."""
    assert parse_job({**LEAST, "workers": 2, "deterministic": True}).group.max == 2
    error = refusal(workers={"min": 1, "max": 2}, deterministic=True)
    assert error.field == "workers"
    assert error.message.startswith("workers is 1 to 2, but must be one number for a deterministic job")


@pytest.mark.parametrize("workers", [2, {"min": 1, "max": 2}])
def test_a_job_on_a_gpu_has_one_worker(workers: JsonValue) -> None:
    error = refusal(workers=workers, plan={"device": "cuda"})
    assert error.field == "workers"
    assert error.message.startswith("workers is 2, but must be 1 with plan.device 'cuda'")
    assert parse_job({**LEAST, "workers": 1, "plan": {"device": "cuda"}}).group.max == 1


def test_the_name_of_a_tag_is_no_field_of_a_job() -> None:
    """pydantic's paths have the tags of a choice; a job with such names is refused as any other."""
    for fields in ({"(number)": 1}, {"plan": {"(object)": 1}}, {"workers": {"(object)": 1}}):
        assert refusal(**fields).reason == "invalid_config"


@pytest.mark.parametrize("job_id", ["../x", "..", ".", "a/b", "a\x00b", "a\n", "", "a" * 65, "a" * 300, "ä", "a b"])
def test_invalid_job_ids_are_refused(job_id: str) -> None:
    """An id names a directory and a Redis key, so it has neither path separators nor line breaks."""
    error = refusal(job_id=job_id)
    assert error.field == "job_id"
    assert error.message.isprintable()
    assert not is_job_id(job_id)


@pytest.mark.parametrize("payload", [[], "train", None, 3])
def test_a_payload_that_is_not_an_object_is_refused(payload: JsonValue) -> None:
    with pytest.raises(InvalidConfig, match="must be an object"):
        parse_job(payload)


def test_a_payload_over_64_kib_is_refused_before_validation() -> None:
    error = refusal(job_id="a" * MAX_JOB_BYTES)
    assert str(MAX_JOB_BYTES) in error.message
    assert error.field is None


def test_a_payload_of_very_many_fields_is_refused_before_validation() -> None:
    """Each of them would be a finding, and hundreds of megabytes for a service that reads jobs of others."""
    job = {"type": "preflight.train.v1", "plan": {f"f{number}": 1 for number in range(1000)}}
    with pytest.raises(InvalidConfig, match="the job has 1002 fields, but may have at most 1000"):
        parse_job(job)


def test_several_findings_are_counted() -> None:
    assert refusal(epochs=0, batch_size=0).message.endswith("(and 1 more)")


@given(st.dictionaries(st.sampled_from([*TrainJob.model_fields, "x"]), st.from_type(float) | st.text() | st.none()))
def test_no_payload_raises_anything_but_a_refusal(fields: dict[str, JsonValue]) -> None:
    try:
        job = parse_job({**LEAST, **fields})
    except InvalidConfig as error:
        assert "\n" not in error.message
    else:
        assert job.spec().dataset == job.dataset


def test_the_wire_names_every_knob_and_plan_field_of_a_trial() -> None:
    """`own`, `default` and `earlier` are whole plans and turn no single knob; `PlanFields` is complete."""
    assert {*KNOBS, "own", "default", "earlier"} == {*get_args(TrialKnob)}
    assert set(PlanFields.model_fields) - set(Event.model_fields) == set(TYPES)


def test_an_attempt_ends_with_a_terminal_event() -> None:
    """`job_interrupted` ends a process, but the job is queued again."""
    assert set(TERMINAL_EVENTS) == {"training_done", "job_failed", "job_cancelled"}


def test_every_number_and_text_on_the_wire_is_bounded() -> None:
    """No field takes a number without limits or a string without a length."""
    for name, text in schemas().items():
        for path, node in leaves(json.loads(text), name):
            if node.get("type") in ("integer", "number") and "enum" not in node:
                assert {"minimum", "exclusiveMinimum"} & set(node), path
                assert {"maximum", "exclusiveMaximum"} & set(node), path
            elif node.get("type") == "string":
                assert {"maxLength", "pattern", "const", "enum", "default", "contentSchema"} & set(node), path


def leaves(node: JsonValue, path: str) -> list[tuple[str, dict[str, JsonValue]]]:
    if isinstance(node, list):
        return [leaf for index, item in enumerate(node) for leaf in leaves(item, f"{path}/{index}")]
    if not isinstance(node, dict):
        return []
    own = [(path, node)] if isinstance(node.get("type"), str) else []
    return own + [leaf for key, item in node.items() for leaf in leaves(item, f"{path}/{key}")]
