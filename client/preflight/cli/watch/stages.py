"""Stage, outcome and times of a job in words."""

from collections.abc import Iterator

from preflight.cli.watch.timeline import JobTimeline
from preflight.events.phrases import STAGES
from preflight.events.sentences import together
from preflight.numbers import duration, plural, predicted
from preflight.wire import GroupChanged, GroupFormed, GroupMeasured, JobCancelled, JobFailed, TrainingDone


def stage_lines(timeline: JobTimeline) -> Iterator[tuple[str, str]]:
    """Yield the current stage or the outcome, each text with its style."""
    match timeline.last:
        case TrainingDone() as done:
            yield f"test accuracy {done.test_accuracy:.2%}", "bold green"
            speed = f"{done.samples_per_s:,.0f} samples/s{together(done.workers)}"
            yield f"{format_clock(done.train_s)} of training, {speed}", ""
            yield f"{done.artifact}/model.safetensors", ""
        case JobFailed() as failed:
            yield f"{failed.reason}: {failed.message}", "bold red"
        case JobCancelled() as cancelled:
            yield cancelled.message, "yellow"
        case _:
            yield _activity(timeline), ""


def _activity(timeline: JobTimeline) -> str:
    if timeline.status == "queued":
        ahead = timeline.jobs_ahead
        return "queued" + (
            "" if ahead is None else ", next in line" if ahead == 0 else f", {plural(ahead, 'job')} ahead"
        )
    now = timeline.progress
    if now is None or timeline.last is None or now.attempt != timeline.last.attempt:
        return _preparation(timeline)
    if now.epoch == now.epochs and now.step == now.steps:
        return f"epoch {now.epoch}/{now.epochs} done; testing and saving"
    figures = f"epoch {now.epoch}/{now.epochs}, step {now.step:,}/{now.steps:,}, {now.samples_per_s:,.0f} samples/s"
    return f"{figures}, {format_clock(now.eta_s)} left"


def _preparation(timeline: JobTimeline) -> str:
    """Return the activity of an attempt before its first step."""
    if timeline.winner is not None:
        return STAGES["calibration_winner"]
    if timeline.trials:
        gain = (
            f", the best {timeline.best:.2f}x so far, not confirmed yet" if timeline.best and timeline.best > 1 else ""
        )
        return f"{STAGES['calibration_trial']}: {plural(timeline.trials, 'plan')} tried{gain}"
    return STAGES["job_started"] if timeline.data is None else STAGES["dataset_ready"]


def time_lines(timeline: JobTimeline) -> Iterator[str]:
    """Yield the predicted and the measured time."""
    winner, checked = timeline.winner, timeline.checked
    if winner is None or winner.predicted_epoch_s is None:
        return
    low, high = winner.predicted_low_s, winner.predicted_high_s
    text = f"{predicted(winner.predicted_epoch_s, low, high, ' an epoch')} predicted"
    if checked is not None:
        what = f"epoch {checked.epoch}" if checked.whole else f"the first {plural(checked.steps, 'step')}"
        cause = f", {checked.cause}" if checked.cause else ""
        text += f"; {what} took {duration(checked.measured_s)}{cause}"
    yield text


def group_line(group: GroupFormed | GroupChanged, measured: GroupMeasured | None) -> str:
    """Return the members of a group, the leader first, each with its speed alone, and their speed together."""
    speeds = {} if measured is None else dict(zip(measured.members, measured.speeds, strict=False))
    members = (f"{name} ({speeds[name]:,.0f}/s)" if name in speeds else name for name in group.members)
    is_measured = measured is not None and {*measured.members} == {*group.members}
    speedup = f", {measured.speedup:.2f} times as fast as one" if measured is not None and is_measured else ""
    return f"{plural(group.workers, 'worker')}{speedup}: {', '.join(members)}"


def format_clock(seconds: float) -> str:
    """Return a duration as 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
