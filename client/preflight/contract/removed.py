"""Fields that earlier versions had: the values that are still read, and what to do instead.

One entry here, and the field is ignored in whatever holds its old default, and refused by name otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from preflight.errors import InvalidConfig

Part = Literal["job", "plan"]
"""Part of a request that a field belongs to; a training's spec and a trial are parts of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A field that is gone."""

    defaults: tuple[object, ...]
    """Values that ask for nothing, with which the field is ignored."""
    gone: str
    """Clause that says what is gone."""
    remedy: str
    """Clause that says what to do instead."""


REMOVED: Final[Mapping[Part, Mapping[str, Removed]]] = {
    "job": {
        "average_every": Removed(
            defaults=(1,),
            gone="workers average gradients, at every step",
            remedy="leave it out",
        ),
    },
    "plan": {
        "processes": Removed(
            defaults=(None, 1),
            gone="a training has one process",
            remedy="leave it out and set plan.threads, or start `preflight worker --processes N` for several jobs",
        ),
    },
}
"""Part -> field -> the values that are ignored, and the words that refuse others."""
REMOVED_KNOBS: Final = frozenset({"processes"})
"""Knobs that calibration no longer turns."""


def without_removed(part: Part, fields: object) -> object:
    """Return the fields of an object without those that are gone; anything else as it is.

    Raises:
        InvalidConfig: one that is gone asks for something.
    """
    if not isinstance(fields, dict):
        return fields
    for name in fields.keys() & REMOVED[part].keys():
        removed, value = REMOVED[part][name], fields[name]
        if not any(type(value) is type(default) and value == default for default in removed.defaults):
            field = name if part == "job" else f"{part}.{name}"
            raise InvalidConfig(f"{field} is {ascii(value)[:60]}, but {removed.gone}; {removed.remedy}", field=field)
    return forget_removed(part, fields)


def stored_without_removed(part: Part, fields: object) -> object:
    """Do the same for fields that an earlier version has stored; raises `ValueError`, as any reader does."""
    try:
        return without_removed(part, fields)
    except InvalidConfig as error:
        raise ValueError(error.message) from error


def forget_removed(part: Part, fields: object) -> object:
    """Return the fields of a record without those that are gone, whatever they were."""
    if not isinstance(fields, dict):
        return fields
    return {name: value for name, value in fields.items() if name not in REMOVED[part]}


def is_removed_knob(knob: object) -> bool:
    """Whether this is a knob that calibration no longer turns."""
    return isinstance(knob, str) and knob in REMOVED_KNOBS


def without_removed_knobs(knobs: object) -> object:
    """Return a list in JSON of knobs without those that are gone, as a tuple; anything else as it is."""
    return tuple(knob for knob in knobs if not is_removed_knob(knob)) if isinstance(knobs, list) else knobs


def without_removed_knob(knob: object) -> object:
    """Return the knob of a trial, None for one that is gone."""
    return None if is_removed_knob(knob) else knob


def in_one_process(plan: object, batch_size: object) -> object:
    """Return the fields of a plan that had several processes as one process runs it.

    It has the threads of all of them, and micro-batches no larger than the share of an effective batch that each had:
    batch norms see as many samples at once as before.
    """
    if not isinstance(plan, dict):
        return plan
    match plan.get("processes"), plan.get("threads"), plan.get("micro_batch"), batch_size:
        case int(count), int(threads), int(micro), int(batch) if count > 1:
            share = max(1, -(-batch // count))
            return forget_removed("plan", {**plan, "threads": threads * count, "micro_batch": min(micro, share)})
    return plan
