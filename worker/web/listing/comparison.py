"""Comparison of a few jobs: settings that differ, results, plans and curves."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue
from redis import Redis

from preflight import Client
from preflight.errors import InvalidConfig
from preflight.events.phrases import speed_of
from preflight.events.plan_words import plan_line
from preflight.wire import CalibrationWinner, JobState, read_job
from worker.web.listing.curves import read_curves
from worker.web.listing.models import ComparedJob, Comparison


def compare(client: Client, redis: Redis, states: Sequence[JobState]) -> Comparison:
    """Return jobs side by side; raises `redis.exceptions.RedisError`."""
    jobs = [_compared(client, redis, state) for state in states]
    names = dict.fromkeys(name for job in jobs for name in job.settings)
    known = [job.settings for job in jobs if job.settings]
    differing = [name for name in names if any(one.get(name) != known[0].get(name) for one in known[1:])]
    return Comparison(jobs=jobs, differing=differing)


def _compared(client: Client, redis: Redis, state: JobState) -> ComparedJob:
    plans = [event for event in client.lifecycle_events(state.job_id) if isinstance(event, CalibrationWinner)]
    return ComparedJob(
        state=state, result=client.result(state.job_id) if state.status == "finished" else None,
        settings=_settings(client.request(state.job_id)), plan=plans[-1] if plans else None,
        plan_line=plan_line(plans[-1]) if plans else None,
        plan_speed=(speed_of(plans[-1]) or None) if plans else None,
        curves=read_curves(redis, state.job_id),
    )  # fmt: skip


def _settings(request: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    """Return the fields of a request with their defaults; the given ones alone where it is of a newer version."""
    if request is None:
        return {}
    try:
        job = read_job(dict(request))
        spec = job.spec()
    except InvalidConfig:
        return dict(_flat(request))
    whole = job.model_dump(mode="json", exclude={"type", "job_id"})
    fixed = {name: getattr(spec, name) for name in whole if name != "augmentation" and hasattr(spec, name)}
    return dict(_flat({**whole, **fixed}))


def _flat(fields: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif f"{prefix}{name}" not in ("type", "job_id"):
            yield f"{prefix}{name}", value
