"""Checks of a job's events: their order, and the training time that a fault lost."""

from collections.abc import Sequence
from itertools import pairwise

from preflight.wire import (
    AnyEvent,
    CheckpointSaved,
    EpochDone,
    JobResumed,
    LoaderConfig,
    Progress,
)
from tools.faults.jobs import FIRST_REPORT_S


def sequence_problems(events: Sequence[AnyEvent], *, whole: bool) -> list[str]:
    """Return the faults in the order of the events: each attempt counts from 1 by one, and none emits late.

    Args:
        events: in the order of the stream.
        whole: whether the stream holds all of them; an emptied Redis lost the first ones.
    """
    problems = []
    if any(late.attempt < early.attempt for early, late in pairwise(events)):
        problems.append("an earlier attempt spoke after a later one")
    for attempt in dict.fromkeys(event.attempt for event in events):
        found = [event.seq for event in events if event.attempt == attempt]
        first = 1 if whole else found[0]
        if found != list(range(first, first + len(found))):
            problems.append(f"events of attempt {attempt} are numbered {found}")
    return problems


def lost_seconds(events: Sequence[AnyEvent], struck: float, first_step_s: float) -> float:
    """Return how many seconds of training before `struck` were done again after it.

    Args:
        events: of the job, in order.
        struck: when the fault came.
        first_step_s: from the start of a training process to its first step.
    """
    steps = next((event.steps for event in events if isinstance(event, Progress)), 1)
    again = _resumption([event for event in events if event.ts > struck], steps)
    before = [event for event in events if event.ts <= struck]
    begun = next((at for at, event in reversed(list(enumerate(before))) if isinstance(event, LoaderConfig)), None)
    if again is None or begun is None or _saved_since(struck, events, again, steps):
        return 0.0
    # Where the run that was struck stood, and when; it began at 0 or at a checkpoint.
    stood = [(at, event.ts) for event in before[begun:] if (at := _position(event, steps)) is not None]
    if not any(isinstance(event, JobResumed) for event in before[begun:]):
        stood.insert(0, (0, stood[0][1] - FIRST_REPORT_S if stood else before[begun].ts + first_step_s))
    return max(0.0, struck - _when(stood, again))


def _resumption(events: Sequence[AnyEvent], steps: int) -> int | None:
    """Return the step from which a training resumed; None where none was begun again."""
    begun = False
    for event in events:
        if isinstance(event, JobResumed):
            return _position(event, steps)
        if isinstance(event, Progress | EpochDone):
            return 0 if begun else None
        begun = begun or isinstance(event, LoaderConfig)
    return None


def _saved_since(struck: float, events: Sequence[AnyEvent], position: int, steps: int) -> bool:
    """Whether the run that was struck still saved at `position`, as one that is asked to stop does."""
    saved = (event for event in events if isinstance(event, CheckpointSaved) and event.ts > struck)
    return any(event.epochs_done * steps + event.steps_done == position for event in saved)


def _position(event: AnyEvent, steps: int) -> int | None:
    """Return how many steps of a training were done at this event."""
    if isinstance(event, Progress):
        return (event.epoch - 1) * steps + event.step
    if isinstance(event, JobResumed):
        return event.epochs_done * steps + event.steps_done
    return None


def _when(stood: Sequence[tuple[int, float]], position: int) -> float:
    """Return when a run that was at these positions at these times was at `position`."""
    for (low, early), (high, late) in pairwise(stood):
        if low <= position <= high and high > low:
            return early + (late - early) * (position - low) / (high - low)
    return stood[-1][1] if position >= stood[-1][0] else stood[0][1]
