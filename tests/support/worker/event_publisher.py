"""Events of a running job, published as its worker would."""

import time
from typing import Final

from pydantic import JsonValue
from redis import Redis

from preflight.events.state import publish
from preflight.wire import EVENT

PLAN: Final[dict[str, JsonValue]] = {
    "threads": 2, "interop": 1, "micro_batch": 128, "precision": "float32", "memory_format": "contiguous",
    "allocator": "default",
}  # fmt: skip


class EventPublisher:
    """Makes a job a running one in RQ's keys, and publishes the events of an attempt, as its worker would."""

    def __init__(self, connection: Redis, job_id: str, attempt: int = 1) -> None:
        self._redis = connection
        self._job_id = job_id
        self._attempt = attempt
        self._seq = 0
        connection.hset(f"rq:job:{job_id}", "status", "started")
        connection.zadd("rq:wip:preflight", {job_id: time.time() + 60})

    def say(self, kind: str, **fields: JsonValue) -> None:
        self._seq += 1
        header = {"type": kind, "seq": self._seq, "job_id": self._job_id, "attempt": self._attempt, "ts": time.time()}
        publish(self._redis, EVENT.validate_python({**header, **fields}), ttl=60)

    def start(self, **fields: JsonValue) -> None:
        job: dict[str, JsonValue] = {"dataset": "mnist", "model": "cnn", "epochs": 4, "batch_size": 128}
        self.say("job_started", **{**job, "worker": "w", **fields})
        self.say("resource_limits", cpu_cores=2, memory_mb=4096, source="cpu: cpu.max; memory: memory.max")
        self.say("dataset_ready", dataset="mnist", train_samples=55_000, test_samples=10_000, seconds=0.3)

    def train(self, first: int, last: int) -> None:
        """Publish four progress events of each epoch from `first` to `last`; epochs count from 1."""
        for epoch in range(first, last + 1):
            for quarter in range(1, 5):
                done = epoch - 1 + quarter / 4
                self.say(
                    "progress", epoch=epoch, epochs=4, step=100 * quarter, steps=400, loss=2.3 / (1 + 3 * done),
                    accuracy=1 - 0.8 / (1 + 4 * done), samples_per_s=12_000 + 300 * (quarter % 2), eta_s=5 * (4 - done),
                    used_memory_mb=600 + 10 * epoch,
                )  # fmt: skip
            self.say("epoch_done", epoch=epoch, loss=0.1, val_acc=0.96 + epoch / 125, val_loss=0.2 / epoch,
                     samples_per_s=12_100, seconds=4.6, train_seconds=4.5)  # fmt: skip
            self.say("prediction_checked", epoch=epoch, steps=400, whole=True, predicted_s=4.4, low_s=4.2, high_s=4.7,
                     measured_s=4.3 + 0.1 * epoch, predicted_batch_s=0.011, measured_batch_s=0.011,
                     deviation=(4.3 + 0.1 * epoch) / 4.4 - 1)  # fmt: skip

    def calibrate(self, note: str = "") -> None:
        self.say("calibration_trial", **PLAN, knob="own", steps=64, won=False, verdict="own", samples_per_s=6540,
                 peak_bytes=412 << 20, note=note, left_s=40)  # fmt: skip
        other: dict[str, JsonValue] = {**PLAN, "allocator": "tcmalloc"}
        self.say("calibration_trial", **other, knob="allocator", steps=64, won=True, verdict="won", ratio=1.18,
                 low=1.14, high=1.22, samples_per_s=7710, note="")  # fmt: skip
        narrow: dict[str, JsonValue] = {**other, "threads": 1}
        self.say("calibration_trial", **narrow, knob="threads", steps=24, won=False, verdict="dropped", ratio=0.61,
                 low=0.58, high=0.65, samples_per_s=4700, note="")  # fmt: skip
        self.say("calibration_trial", **other, knob="compile", compile=True, steps=0, won=False, verdict="skipped",
                 note="no C++ compiler was found, which torch.compile needs")  # fmt: skip
        self.say("calibration_trial", **{**other, "interop": 2}, knob="interop", steps=0, won=False, verdict="skipped",
                 reached=False, note="time budget used up")  # fmt: skip
        self.say("calibration_winner", **other, source="measured", why="1.18 times as fast as the job's own plan",
                 predicted_epoch_s=4.4, predicted_low_s=4.2, predicted_high_s=4.7, confidence="high",
                 ratio=1.18, ratio_low=1.13, ratio_high=1.23,
                 calibration_seconds=8.2, import_seconds=2.1, trials=3, skipped=2,
                 reasons="tcmalloc: 1.18x (1.14x to 1.22x); "
                         "together, in a fresh process: 1.18x (1.13x to 1.23x)")  # fmt: skip
        self.say("training_config", **other, batch_size=128)

    def fail(self, **fields: JsonValue) -> None:
        """Publish a failure, and record it in RQ's keys."""
        self.say("job_failed", **fields)
        self._redis.hset(f"rq:job:{self._job_id}", "status", "failed")
        self._redis.zrem("rq:wip:preflight", self._job_id)
        self._redis.zadd("rq:failed:preflight", {self._job_id: time.time() + 60})
