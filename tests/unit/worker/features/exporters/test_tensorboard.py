"""Event files, read back by TensorBoard."""

import math
from collections.abc import Callable
from pathlib import Path

import structlog
from pydantic import JsonValue
from structlog.testing import capture_logs

from preflight.contract.spec import DEFAULTS
from preflight.wire import EVENT
from worker.features.exporters.tensorboard import TensorBoardSink
from worker.features.exporters.tfevents import masked_crc

CONFIG: dict[str, JsonValue] = {
    "type": "training_config", "threads": 1, "interop": 1, "micro_batch": 32, "precision": "float32",
    "memory_format": "contiguous", "allocator": "default", "batch_size": 32,
}  # fmt: skip
PROGRESS: dict[str, JsonValue] = {
    "type": "progress", "epochs": 2, "steps": 100, "accuracy": 0.5, "samples_per_s": 1000.0, "eta_s": 1.0,
}  # fmt: skip
EPOCH: dict[str, JsonValue] = {
    "type": "epoch_done", "loss": 1.0, "samples_per_s": 1000.0, "seconds": 1.0, "train_seconds": 1.0,
}  # fmt: skip
DONE: dict[str, JsonValue] = {
    "type": "training_done", "test_accuracy": 0.875, "test_loss": 0.25, "epochs": 2, "best_epoch": 2,
    "stopped_early": False, "train_seconds": 2.0, "samples_per_s": 1000.0, "measured_epoch_s": 1.0, "artifact": "a",
    "model_sha256": "0" * 64,
}  # fmt: skip


def say(sink: TensorBoardSink, fields: dict[str, JsonValue], **more: JsonValue) -> None:
    header = {"seq": 1, "job_id": "j", "attempt": 1, "ts": 1_700_000_000.0}
    sink.emit(EVENT.validate_python({**header, **fields, **more}))


def sink(directory: Path, attempt: int = 1) -> TensorBoardSink:
    return TensorBoardSink(directory, "j", attempt, DEFAULTS)


def test_steps_count_on_in_a_shorter_last_epoch(tmp_path: Path) -> None:
    """The second epoch ends after 60 of 100 steps; a killed process had gone beyond its checkpoint after 120 steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first, second = sink(tmp_path), sink(tmp_path, attempt=2)
    say(first, CONFIG)
    say(first, PROGRESS, epoch=1, step=100, train_steps=100, loss=4.0)
    say(first, PROGRESS, epoch=2, step=10, steps=60, train_steps=110, loss=3.0)
    say(first, PROGRESS, epoch=2, step=40, steps=60, train_steps=140, loss=9.0)
    say(second, CONFIG)
    say(second, {"type": "job_resumed"}, epochs_done=1, steps_done=20)
    say(second, PROGRESS, epoch=2, step=60, steps=60, train_steps=160, loss=2.0)
    drawn = EventAccumulator(str(tmp_path / "j"), purge_orphaned_data=True)
    drawn.Reload()
    assert [(at.step, at.value) for at in drawn.Scalars("train/loss")] == [(100, 4.0), (110, 3.0), (160, 2.0)]


def test_the_checksum_is_castagnolis() -> None:
    """CRC-32C of the digits 1 to 9 is e3069283 (RFC 3720 and others), masked as TFRecord has it."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_repeated_steps_of_a_killed_job_replace_the_first(tmp_path: Path) -> None:
    """Steps are global; TensorBoard discards those after the checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first, second = sink(tmp_path), sink(tmp_path, attempt=2)
    say(first, CONFIG)
    say(first, PROGRESS, epoch=1, step=100, loss=4.0)
    say(first, EPOCH, epoch=1, val_acc=0.75, val_loss=0.5)
    say(first, PROGRESS, epoch=2, step=40, loss=3.0)
    say(first, PROGRESS, epoch=2, step=80, loss=9.0)
    say(second, CONFIG, threads=2)
    say(second, {"type": "job_resumed"}, epochs_done=1, steps_done=50)
    say(second, PROGRESS, epoch=2, step=90, loss=2.0)
    say(second, PROGRESS, epoch=2, step=91, loss=1e300)
    say(second, EPOCH, epoch=2)
    say(second, DONE)

    drawn = EventAccumulator(str(tmp_path / "j"), purge_orphaned_data=True)
    drawn.Reload()
    assert [(at.step, at.value) for at in drawn.Scalars("train/loss")] == [
        (100, 4.0), (140, 3.0), (190, 2.0), (191, math.inf),
    ]  # fmt: skip
    assert {at.wall_time for at in drawn.Scalars("train/loss")} == {1_700_000_000.0}
    assert [(at.step, at.value) for at in drawn.Scalars("validation/accuracy")] == [(1, 0.75)]
    assert [(at.step, at.value) for at in drawn.Scalars("test/accuracy")] == [(2, 0.875)]
    assert set(drawn.Tags()["scalars"]) == {
        "train/loss", "train/accuracy", "train/samples_per_s", "validation/accuracy", "validation/loss",
        "test/accuracy", "test/loss",
    }  # fmt: skip
    plans = [at.tensor_proto.string_val[0].decode() for at in drawn.Tensors("plan")]
    assert ['"threads": 1' in plans[0], '"threads": 2' in plans[-1]] == [True, True]
    (spec, _) = drawn.Tensors("spec")
    assert f'"seed": {DEFAULTS.seed}' in spec.tensor_proto.string_val[0].decode()


def test_a_full_disk_is_logged_once(small_disk: tuple[Path, Callable[[], None]]) -> None:
    """The training continues without further records; the file stays readable."""
    directory, _ = small_disk
    structlog.reset_defaults()
    drawing = sink(directory)
    with capture_logs() as logs:
        say(drawing, CONFIG)
        for step in range(1, 100):
            say(drawing, PROGRESS, epoch=1, step=step, loss=1.0)
    assert [record["event"] for record in logs] == ["tensorboard_stopped"]
    assert len(list((directory / "j").iterdir())) == 1


def test_no_directory_is_made_before_the_first_record(tmp_path: Path) -> None:
    """A directory that cannot be made is logged."""
    say(sink(tmp_path), {"type": "warning", "message": "w"})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with capture_logs() as logs:
        say(sink(tmp_path / "file"), CONFIG)
    assert [record["event"] for record in logs] == ["tensorboard_stopped"]
