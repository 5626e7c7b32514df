"""Curves of a job: a bounded number of points of its events, whatever their number."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from redis import Redis
from redis.exceptions import RedisError

from preflight.redis import keys
from worker.web.listing.models import Curve
from worker.web.streams.stream_record import RAW_RECORDS, RawRecords, is_unreadable, parse_id

WHOLE: Final = 1000
"""Most events of a stream that is read as a whole."""
SAMPLES: Final = 300
"""Events that are read of a longer stream, evenly over its time."""
MAX_EPOCHS: Final = 40
"""Most ends of epochs that are looked for between the samples."""
BETWEEN: Final = 200
"""Most events that are read between two samples, to find the end of an epoch."""

MAX_POINTS: Final = 500
"""Most points of a curve."""

Point = tuple[float, tuple[float | None, ...]]
"""Epochs trained, and the figures at that time."""


def read_curves(redis: Redis, job_id: str) -> dict[str, Curve]:
    """Return `loss`, `accuracy` and `speed` of the training steps, and `val_loss` and `val_acc`, by epochs trained.

    Raises:
        redis.exceptions.RedisError: Redis did not answer.
    """
    try:
        records = [fields for _, fields in _read(redis, keys.events(job_id))]
    except RedisError as error:
        if not is_unreadable(error):
            raise
        records = []  # another view says that the key is no stream
    training = _current(_training_points(records))
    validation = _current(_validation_points(records))
    return {
        **{name: _curve(training, figure) for figure, name in enumerate(("loss", "accuracy", "speed"))},
        **{name: _curve(validation, figure) for figure, name in enumerate(("val_loss", "val_acc"))},
    }


def _read(redis: Redis, key: str) -> RawRecords:
    """Return records in order: all of a short stream, else samples, and those between some that end an epoch."""
    if redis.xlen(key) <= WHOLE:
        return _records(redis.xrange(key))
    ends = _records(redis.xrange(key, count=1)) + _records(redis.xrevrange(key, count=1))
    if len(ends) < 2:  # removed meanwhile
        return ends
    first, last = (parse_id(record_id.decode())[0] for record_id, _ in ends)
    pipe = redis.pipeline(transaction=False)
    for number in range(SAMPLES):
        pipe.xrange(key, min=first + (last - first) * number // SAMPLES, count=1)
    found = {record_id: fields for reply in pipe.execute() for record_id, fields in _records(reply)}
    pipe = redis.pipeline(transaction=False)
    for before, after in _gaps([*found.items(), *ends[1:]]):
        pipe.xrange(key, min=before, max=after, count=BETWEEN)
    found |= {record_id: fields for reply in pipe.execute() for record_id, fields in _records(reply)}
    return sorted({**found, **dict(ends)}.items(), key=lambda record: parse_id(record[0].decode()))


def _gaps(samples: RawRecords) -> list[tuple[bytes, bytes]]:
    """Return pairs of neighbours of different epochs, evenly chosen where there are many."""
    pairs = [
        (before, after)
        for (before, one), (after, other) in itertools.pairwise(samples)
        if one.get(b"epoch") != other.get(b"epoch")
    ]
    step = max(1, math.ceil(len(pairs) / MAX_EPOCHS))
    return pairs[::-step]


def _records(reply: object) -> RawRecords:
    return RAW_RECORDS.validate_python(reply or [])


def _training_points(records: Sequence[Mapping[bytes, bytes]]) -> Iterator[Point]:
    for fields in records:
        if fields.get(b"type") == b"progress":
            epoch, step, steps = (_number(fields, name) for name in (b"epoch", b"step", b"steps"))
            if epoch is not None and step is not None and steps:
                figures = tuple(_number(fields, name) for name in (b"loss", b"accuracy", b"samples_per_s"))
                yield epoch - 1 + step / steps, figures


def _validation_points(records: Sequence[Mapping[bytes, bytes]]) -> Iterator[Point]:
    for fields in records:
        epoch = _number(fields, b"epoch") if fields.get(b"type") == b"epoch_done" else None
        if epoch is not None:
            yield epoch, (_number(fields, b"val_loss"), _number(fields, b"val_acc"))


def _current(points: Iterable[Point]) -> list[Point]:
    """Return points in ascending order: what was trained again after an interruption replaces what was lost."""
    kept: list[Point] = []
    for point in points:
        while kept and kept[-1][0] >= point[0]:
            kept.pop()
        kept.append(point)
    return kept


def _curve(points: Sequence[Point], figure: int) -> Curve:
    known = [
        (epoch, value) for epoch, figures in points if (value := figures[figure]) is not None and math.isfinite(epoch)
    ]
    step = math.ceil(len(known) / MAX_POINTS)
    kept = known[::-step][::-1] if step else []
    return Curve(epochs=[_short(epoch) for epoch, _ in kept], values=[_short(value) for _, value in kept])


def _short(value: float) -> float:
    """Return a number to six digits: more are not seen, and double the answer."""
    return float(f"{value:.6g}")


def _number(fields: Mapping[bytes, bytes], name: bytes) -> float | None:
    try:
        value = float(fields[name])
    except (KeyError, ValueError):
        return None
    return value if math.isfinite(value) else None
