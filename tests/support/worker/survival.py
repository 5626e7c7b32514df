"""Long jobs that tests interrupt."""

from preflight import Client
from preflight.wire import AnyEvent, CheckpointSaved, TrainJob
from support.worker.services import digits_job

FREQUENT = {"PREFLIGHT_CHECKPOINT_SECONDS": "0.2"}


def long_job(job_id: str, **fields: object) -> TrainJob:
    """Return a deterministic job of some seconds."""
    return digits_job(job_id=job_id, epochs=12, deterministic=True, **fields)


def until_checkpoint(client: Client, job_id: str, count: int = 2) -> None:
    """Wait until a job has saved `count` checkpoints in a row."""
    saved = 0
    for event in client.events(job_id, timeout=60):
        saved += isinstance(event, CheckpointSaved)
        if saved == count:
            return
    raise AssertionError(f"{job_id} ended before it had saved {count} times")


def assert_nothing_duplicated(client: Client, job_id: str) -> list[AnyEvent]:
    """Assert that the events of each attempt are complete and in order, and that the job finished once; return them."""
    events = list(client.events(job_id, timeout=10))
    for attempt in {event.attempt for event in events}:
        seqs = [event.seq for event in events if event.attempt == attempt]
        assert seqs == list(range(1, len(seqs) + 1))
    assert [event.type for event in events].count("training_done") == 1
    return events
