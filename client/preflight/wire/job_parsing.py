"""Parse and encode jobs as JSON."""

import json
from collections.abc import Callable
from functools import cache
from typing import Final

from pydantic import JsonValue, ValidationError

from preflight.contract.recipes import NETWORKS
from preflight.contract.registry import DATASETS, MODELS, RECIPE_MODELS, require
from preflight.errors import InvalidConfig
from preflight.wire.base import JOB_TYPE, MAX_JOB_BYTES
from preflight.wire.job import TrainJob
from preflight.wire.validation_errors import to_invalid_config

MAX_FIELDS: Final = 1000
"""Most fields of a job, those of its parts included; it has some sixty. To refuse an unknown one costs half a KB."""
FIELD_END: Final = '": '
"""Text behind the name of each field in JSON."""


def require_registered(dataset: str) -> None:
    """Raise `InvalidConfig` unless a package registers this data set."""
    require(DATASETS, "dataset", dataset)


def parse_job(
    payload: object, has_begun: Callable[[TrainJob], bool] = lambda _job: False,
    require_dataset: Callable[[str], None] = require_registered,
) -> TrainJob:  # fmt: skip
    """Return the job in `payload`, a JSON object as Python data.

    A job that names a recipe's network without the recipe continues where it `has_begun`: versions to 0.25.1 took it.
    `require_dataset` raises `InvalidConfig` for a data set that is not there.

    Raises:
        InvalidConfig: it is too large, malformed or out of bounds, its data set or model is not registered, or the
            model belongs to a recipe.
    """
    job = read_job(payload)
    require_dataset(job.dataset)
    model = job.spec().model
    found = require(MODELS, "model", model)
    recipe = NETWORKS.get(model)
    if found.group == RECIPE_MODELS and recipe is not None and job.recipe is None and not has_begun(job):
        raise InvalidConfig(
            f"model {model!r} belongs to recipe {recipe!r}; leave out model and set recipe to {recipe!r}", field="model"
        )
    return job


def read_job(payload: object) -> TrainJob:
    """Return the job in `payload`; its data set and model may be registered on the worker only.

    Raises:
        InvalidConfig: it is too large, malformed or out of bounds.
    """
    if not isinstance(payload, dict):
        raise InvalidConfig(f"the job is a {type(payload).__name__}, but must be an object; send a TrainJob")
    text = encode_job(payload)
    if text.count(FIELD_END) > MAX_FIELDS:
        raise InvalidConfig(
            f"the job has {text.count(FIELD_END)} fields, but may have at most {MAX_FIELDS}; send a TrainJob"
        )
    if payload.get("type") != JOB_TYPE:
        kind = ascii(payload.get("type"))[:80]
        raise InvalidConfig(f"type is {kind}, but this version reads {JOB_TYPE!r}; set it", field="type")
    try:
        return TrainJob.model_validate_json(_with_integers(text))
    except ValidationError as error:
        raise to_invalid_config(error, _job_schema()) from error


def encode_job(payload: dict[str, JsonValue]) -> str:
    """Return `payload` as JSON; raises `InvalidConfig` where it is not JSON or too large."""
    try:
        text = json.dumps(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(f"the job is not JSON ({error}); send plain objects and numbers") from error
    if len(text) > MAX_JOB_BYTES:
        raise InvalidConfig(f"the job is {len(text)} bytes of JSON, but may be at most {MAX_JOB_BYTES}; shorten it")
    return text


@cache
def _job_schema() -> dict[str, JsonValue]:
    """Return the JSON schema of a job; generating it dominates the cost of a refused job."""
    return TrainJob.model_json_schema()


def _with_integers(text: str) -> str:
    """Return JSON text with 201.0 as 201, which JSON Schema calls an integer (6.3)."""

    def number(literal: str) -> float:
        value = float(literal)
        return int(value) if value.is_integer() and abs(value) <= 2**53 else value

    return json.dumps(json.loads(text, parse_float=number))
