"""Events of a job that trains digits for four epochs of 100 steps."""

from pydantic import JsonValue

from preflight.wire import EVENT, AnyEvent

START = 1_000_000.0


def event(kind: str, **fields: JsonValue) -> AnyEvent:
    header = {"type": kind, "job_id": "job", "attempt": 1, "seq": 1, "ts": START}
    return EVENT.validate_python({**header, **fields})


def started(seq: int = 1, attempt: int = 1, worker: str = "host.7") -> AnyEvent:
    return event("job_started", seq=seq, attempt=attempt, dataset="digits", model="cnn", epochs=4, batch_size=128,
                 worker=worker)  # fmt: skip


def progress(epoch: int, step: int, seq: int = 1) -> AnyEvent:
    return event("progress", seq=seq, epoch=epoch, epochs=4, step=step, steps=100, loss=0.5, accuracy=0.9,
                 samples_per_s=12_345.6, eta_s=75.0)  # fmt: skip


def done(seq: int = 1) -> AnyEvent:
    """Return the end, a minute after the start."""
    return event("training_done", seq=seq, ts=START + 60, test_accuracy=0.9876, test_loss=0.1, epochs=4,
                 best_epoch=4, stopped_early=False, train_seconds=55, samples_per_s=12_345, measured_epoch_s=4.2,
                 artifact="/models/job", model_sha256="0" * 64)  # fmt: skip
