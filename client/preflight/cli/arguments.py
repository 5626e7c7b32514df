"""Parse arguments: job ids, statuses, limits, and the job that `--file`, `--set` and the other options describe."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from preflight.cli.options import DATASET
from preflight.contract.registry import nearest
from preflight.errors import InvalidConfig
from preflight.packages import is_worker_installed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue

    from preflight.wire import Status, TrainJob

MAX_LISTED_JOBS: Final = 10_000
MAX_QUOTED_LENGTH: Final = 60
"""Most characters of a wrong value that an error repeats."""
WORKERS: Final = re.compile(r"(?P<min>[0-9]{1,9})-(?P<max>[0-9]{1,9})")
"""Range of the number of workers, such as `2-4`."""
MAX_FILE_LENGTH: Final = 256 * 1024
"""Characters of `--file`: more than a job may have, as white space does not count there."""
MAX_NAME_LENGTH: Final = 256
"""Most characters of a file's name that an error repeats."""
MAX_FIELD_DEPTH: Final = 8
"""Levels above a field that `--set` names; a job has one."""


def quote(text: str) -> str:
    """Return `text` quoted and truncated, for an error message."""
    return repr(text) if len(text) <= MAX_QUOTED_LENGTH else f"{text[:MAX_QUOTED_LENGTH]!r}..."


def check_job_id(job_id: str) -> None:
    """Raise `InvalidConfig` for a malformed id, before Redis is asked."""
    from preflight.wire import is_job_id

    if not is_job_id(job_id):
        raise InvalidConfig(
            f"JOB is {quote(job_id)}, but must be 1 to 64 letters, digits, '.', '_' or '-'; `preflight jobs` lists ids",
            field="job_id",
        )


def parse_statuses(text: str | None) -> frozenset[Status]:
    """Return the statuses in a comma-separated list; raises `InvalidConfig`."""
    from preflight.wire import Status

    known: dict[str, Status] = {status: status for status in get_args(Status)}
    named = frozenset() if text is None else frozenset(part.strip() for part in text.split(","))
    for name in sorted(named.difference(known)):
        raise InvalidConfig(
            f"--status {quote(name)} is not known{nearest(name, [*known])}; use some of {', '.join(known)}",
            field="status",
        )
    return frozenset(known[name] for name in named)


def parse_limit(text: str | None) -> int:
    """Return how many jobs to list; raises `InvalidConfig`."""
    from preflight.client.results import DEFAULT_LIMIT

    return DEFAULT_LIMIT if text is None else parse_count("limit", text, MAX_LISTED_JOBS)


def parse_count(option: str, text: str, most: int) -> int:
    """Return the whole number from 1 to `most` that an option gives; raises `InvalidConfig`."""
    # The length first: int() raises its own error for thousands of digits.
    short = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not short or not 1 <= int(text) <= most:
        raise InvalidConfig(
            f"--{option} is {quote(text)}, but must be a whole number of at least 1 and at most {most}", field=option
        )
    return int(text)


def parse_job_options(
    options: dict[str, object], has_begun: Callable[[TrainJob], bool] = lambda _job: False,
    require_dataset: Callable[[str], None] = lambda name: _require_registered(name),
) -> TrainJob:  # fmt: skip
    """Return the job that the options describe; raises `InvalidConfig`, and takes the functions as `parse_job`."""
    from preflight.wire import parse_job

    return parse_job(_payload(options), has_begun, require_dataset)


def _require_registered(dataset: str) -> None:
    from preflight.wire.job_parsing import require_registered

    require_registered(dataset)


def parse_enqueued_job(options: dict[str, object], require_dataset: Callable[[str], None]) -> TrainJob:
    """Return the job that the options describe; raises `InvalidConfig`, and takes the function as `parse_job`.

    Its model is looked up where the worker is installed; elsewhere the worker that takes it does so.
    """
    from preflight.wire.job_parsing import read_job

    if is_worker_installed():
        return parse_job_options(options, require_dataset=require_dataset)
    job = read_job(_payload(options))
    require_dataset(job.dataset)
    return job


def _payload(options: dict[str, object]) -> dict[str, JsonValue]:
    from preflight.wire import JOB_TYPE

    default: dict[str, JsonValue] = {} if options["file"] else {"type": JOB_TYPE, "dataset": DATASET}
    return {**default, **job_fields(options)}


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
