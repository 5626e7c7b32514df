"""Configuration of a job: every setting in effect, in words, and the request as it is kept in the job's state."""

import json
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import BeforeValidator, JsonValue, WithJsonSchema

from preflight.contract.spec import DEFAULTS
from preflight.wire.base import Label, Text, Wire, parse_json
from preflight.wire.job import SPEC, TrainJob

MAX_REQUEST_LENGTH: Final = 4096
"""Characters of a request as JSON that is kept in the state: thousands of states are read at once."""
HEADER: Final = {"type", "job_id"}


Request = Annotated[dict[str, JsonValue], BeforeValidator(parse_json), WithJsonSchema({"type": "object"})]
"""A job as it was asked for, without its id."""


class ConfigField(Wire):
    """A setting of a job."""

    name: Label
    """Name of the setting; a part of an object has a dot: `augmentation.scale`."""
    value: Text
    """`none` for null, `yes` and `no`, numbers as JSON has them, with four significant digits."""
    changed: bool
    """Whether it is another value than the default."""


def request_of(job: TrainJob) -> dict[str, JsonValue] | None:
    """Return the job as it was asked for, without its id; None where that is too long to be kept."""
    request = job.as_asked().model_dump(mode="json", exclude_unset=True, exclude={"job_id"})
    return request if len(json.dumps(request)) <= MAX_REQUEST_LENGTH else None


def configuration(job: TrainJob) -> tuple[ConfigField, ...]:
    """Return every setting of a job with its value in effect; of its plan only the fields that it sets itself."""
    default = TrainJob(type=job.type, dataset=DEFAULTS.dataset)
    usual, effective = dict(_settings(default)), dict(_settings(job))
    return tuple(
        ConfigField(name=name, value=_text(value), changed=value != usual.get(name))
        for name, value in effective.items() if value is not None or not name.startswith("plan.")
    )  # fmt: skip


def _settings(job: TrainJob) -> Iterator[tuple[str, JsonValue]]:
    """Yield names and values, in the order of the fields; a recipe's values are those that it stands for."""
    spec: dict[str, JsonValue] = SPEC.dump_python(job.spec(), mode="json")
    for name, value in {**job.model_dump(mode="json", exclude=HEADER), **spec}.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{part}", found) for part, found in value.items())
        else:
            yield name, value


def _text(value: JsonValue) -> str:
    if isinstance(value, bool) or value is None:
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))[:2000] or "none"
    if isinstance(value, float):
        value = float(f"{value:.4g}")  # 1.333 says as much as 1.3333333333333333
    return value if isinstance(value, str) else json.dumps(value)
