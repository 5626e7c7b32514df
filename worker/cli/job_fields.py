"""Build a job from `--file`, `--set` and the other options."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from preflight.errors import InvalidConfig
from worker.cli.arguments import quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue

    from preflight.wire import TrainJob
    from worker.config.settings import Settings

WORKERS: Final = re.compile(r"(?P<min>[0-9]{1,9})-(?P<max>[0-9]{1,9})")
"""From so many workers to so many."""
MAX_FILE_LENGTH: Final = 256 * 1024
"""Characters of `--file`: more than a job may have, as white space does not count there."""
MAX_NAME_LENGTH: Final = 256
"""Characters of a file's name that an error repeats."""
MAX_FIELD_DEPTH: Final = 8
"""Levels above a field that `--set` names; a job has one."""


def parse_job_options(
    options: dict[str, object], has_begun: Callable[[TrainJob], bool] = lambda _job: False
) -> TrainJob:
    """Return the job that the options describe; raises `InvalidConfig`, and takes `has_begun` as `parse_job`."""
    from preflight.wire import JOB_TYPE, parse_job
    from worker.cli.context import load_settings

    default: dict[str, JsonValue] = {} if options["file"] else {"type": JOB_TYPE, "dataset": "mnist"}
    return parse_job(
        {**default, **job_fields(options)}, has_begun, lambda name: _require_dataset(name, load_settings())
    )


def _require_dataset(name: str, settings: Settings) -> None:
    from training.catalog.names import require_dataset

    require_dataset(name, settings.data_dir)


def require_one_worker(job: TrainJob, command: str) -> TrainJob:
    """Return the job, for a command that trains in this container alone; say so where it may have a group.

    Raises:
        InvalidConfig: it needs several workers.
    """
    alone, group = f"`preflight {command}` trains in this container alone", job.group
    if group.min > 1:
        raise InvalidConfig(
            f"workers is at least {group.min}, but {alone}; leave workers out, or enqueue the job", field="workers"
        )
    if group.max > 1:
        click.echo(f"{alone}, not with up to {group.max} workers", err=True)
    return job


def job_fields(options: dict[str, object]) -> dict[str, JsonValue]:
    """Return the fields that the options set; raises `InvalidConfig`."""
    file = options["file"]
    fields = _read_job(file) if isinstance(file, str) else {}
    for name, value in options.items():
        if name == "settings" and isinstance(value, tuple):
            for assignment in value:
                _assign(fields, str(assignment))
        elif name == "calibration_knobs" and isinstance(value, str):
            fields[name] = [knob.strip() for knob in value.split(",")]
        elif name == "workers" and isinstance(value, str) and (bounds := WORKERS.fullmatch(value)):
            fields[name] = {"min": int(bounds["min"]), "max": int(bounds["max"])}
        elif name != "file" and value is not None:
            fields[name] = _literal(value) if isinstance(value, str) else bool(value)
    return fields


def _read_job(file: str) -> dict[str, JsonValue]:
    name = file if len(file) <= MAX_NAME_LENGTH else f"{file[:MAX_NAME_LENGTH]}..."
    try:
        with nullcontext(sys.stdin) if file == "-" else Path(file).open() as opened:
            text = opened.read(MAX_FILE_LENGTH + 1)
        payload = json.loads(text) if len(text) <= MAX_FILE_LENGTH else None
    except OSError as error:
        raise InvalidConfig(f"--file {name} cannot be read ({error.strerror}); check the path", field="file") from error
    except UnicodeError as error:
        raise InvalidConfig(f"--file {name} is not UTF-8 text; save it as UTF-8", field="file") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise InvalidConfig(f"--file {name} is not JSON ({error}); correct it", field="file") from error
    if len(text) > MAX_FILE_LENGTH:
        raise InvalidConfig(f"--file {name} has more than {MAX_FILE_LENGTH} characters; shorten it", field="file")
    if not isinstance(payload, dict):
        raise InvalidConfig(f"--file {name} is not a JSON object; it must be a TrainJob", field="file")
    return payload


def _assign(payload: dict[str, JsonValue], assignment: str) -> None:
    """Set `a.b=value` in the payload."""
    path, equals, value = assignment.partition("=")
    if not equals or not path:
        raise InvalidConfig(
            f"--set {quote(assignment)} is not FIELD=VALUE; write e.g. --set label_smoothing=0.1", field="set"
        )
    *parents, last = path.split(".")
    if len(parents) > MAX_FIELD_DEPTH:
        raise InvalidConfig(
            f"--set {quote(assignment)} names a field {len(parents)} levels deep, but there are at most "
            f"{MAX_FIELD_DEPTH}; correct its name",
            field="set",
        )
    for parent in parents:
        inner = payload.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise InvalidConfig(
                f"--set {quote(assignment)}: {quote(parent)} has no fields; name a top-level field", field="set"
            )
        payload = inner
    payload[last] = _literal(value)


def _literal(text: str) -> JsonValue:
    """Return the JSON value of `text`, or `text` itself where it is not JSON."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):  # also numbers of thousands of digits
        return text
    return value
