"""Fields of a job's state that an event sets."""

import pytest
from support.worker.job_events import done, event

from preflight.events.state import state_update
from preflight.wire import AnyEvent, JobState, flatten


@pytest.mark.parametrize(
    "said",
    [
        event("warning", message="look here"),
        event("out_of_memory", message="continuing with less", micro_batch=8, eval_batch=8),
    ],
    ids=lambda one: one.type,
)
def test_a_warning_is_not_the_last_word_on_a_job(said: AnyEvent) -> None:
    """The state's `message` is that of the job's end; a finished job has none, whatever was warned of."""
    state: dict[str, str] = {}
    for one in (said, done(2), said):
        state |= state_update(one, flatten(one))
    assert state["status"] == "finished"
    assert "message" not in state


def test_the_state_has_the_group_that_trains_now() -> None:
    """What a group could do is not said of the job: it may not stay."""
    state: dict[str, str] = {}
    for one in (
        event("group_formed", workers=3, members=["a", "b", "c"], seconds=1, message="3 workers train"),
        event("group_measured", workers=3, alone_samples_per_s=10, group_samples_per_s=20, speedup=2, kept=True,
              message="twice as fast"),
        event("group_changed", workers=2, members=["a", "c"], left=["b"], message="b has left"),
    ):  # fmt: skip
        state |= state_update(one, flatten(one))
    read = JobState.model_validate({"job_id": "job", "status": "running", **{name: state[name] for name in state}})
    assert (read.workers, read.members) == (2, ("a", "c"))
    assert not {"message", "left", "seconds", "speedup"} & {*state}


def test_a_job_without_enough_workers_waits_again_and_says_why() -> None:
    short = event("group_short", workers=1, wanted=2, message="it needs 2 workers")
    state = state_update(short, flatten(short))
    assert (state["status"], state["message"]) == ("queued", "it needs 2 workers")
    assert "workers" not in state


def test_the_end_has_its_message() -> None:
    failed = event("job_failed", reason="timeout", message="it took too long")
    assert state_update(failed, flatten(failed))["message"] == "it took too long"


def test_a_report_that_comes_later_makes_the_job_no_longer() -> None:
    report = event("report_ready", report="/artifacts/job/report.html")
    assert state_update(report, flatten(report)) == {"report": "/artifacts/job/report.html", "attempt": "1"}
