"""Fields of a job's state that an event sets."""

import pytest
from job_events import done, event

from worker.events.state import state_update
from worker.wire import AnyEvent, flatten


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


def test_the_end_has_its_message() -> None:
    failed = event("job_failed", reason="timeout", message="it took too long")
    assert state_update(failed, flatten(failed))["message"] == "it took too long"
