"""Training children that are killed, stopped and refused, real ones: nothing but the last moments is lost."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ArtifactError, ChildStopped, InvalidConfig, PreflightError
from preflight.files.journal import Record
from training.artifacts.model_dir import read_manifest
from training.artifacts.publish import publish
from training.checkpoints.resume import find_resume_points
from training.data.dataset_info import DatasetInfo
from training.loop import child as training_child
from training.loop.child import TrainingRequest
from training.process.child import Child
from training.process.runner import iter_records
from training.system.digests import Digests

SPEC = TrainSpec(dataset="digits", model="cnn-small-valid", epochs=8, batch_size=32, deterministic=True)
PLAN = Plan(threads=1, micro_batch=32, memory_format="channels_last")


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose attempts are children, as a supervisor runs them."""

    directory: Path
    store: DatasetInfo
    seconds: float = 0.02

    def request(self, attempt: int, spec: TrainSpec = SPEC) -> TrainingRequest:
        """Return the request of an attempt that goes on from the best checkpoint."""
        found, warnings = find_resume_points(self.directory / "state", spec, self.store, Digests())
        assert warnings == []
        return TrainingRequest(
            spec=spec, plan=PLAN, store=self.store.path, facts={"job_id": "a job"},
            artifact=self.directory / "staged" / str(attempt), checkpoints=self.directory / "state" / str(attempt),
            checkpoint_seconds=self.seconds, resume=tuple(each.path for each in found),
        )  # fmt: skip

    def start(self, request: TrainingRequest) -> Child:
        self.directory.mkdir(parents=True, exist_ok=True)
        body = training_child.REQUEST.dump_json(request)
        return Child(training_child.MODULE, body, self.directory, dict(os.environ))

    def finish(self, request: TrainingRequest) -> list[Record]:
        with self.start(request) as child:
            return list(iter_records(child, lambda: None))


@pytest.fixture
def job(tmp_path: Path, digits_store: DatasetInfo) -> Job:
    return Job(tmp_path / "job", digits_store)


def test_a_finished_model_is_whole_where_it_is_published(job: Job) -> None:
    """From the staging directory of the child to its place in one move, with a manifest that vouches for it."""
    short = replace(SPEC, epochs=1, deterministic=False)
    *_, done = job.finish(replace(job.request(1, short), checkpoints=None))
    assert not list((job.directory / "state").rglob("checkpoint-*"))
    place = job.directory / "models" / "a job"
    publish(job.directory / "staged" / "1", place)
    manifest = read_manifest(place)
    assert manifest is not None
    digests = manifest["sha256"]
    assert isinstance(digests, dict)
    assert (manifest["job_id"], digests["model.safetensors"]) == ("a job", done.payload["model_sha256"])
    assert not (job.directory / "staged" / "1").exists()


TIED = """
from torch import nn

def tied(shape, classes):
    first = nn.Linear(784, 784)
    second = nn.Linear(784, 784)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.Linear(784, classes))
"""


def test_a_model_that_uses_weights_twice_is_kept_and_saved(
    job: Job, install_package: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such weights share memory, which safetensors refuses; checkpoints and the model hold them under both names."""
    install_package("preflight.models", {"tied": "tied:tied"}, "tied", TIED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    records = job.finish(job.request(1, replace(SPEC, model="tied", epochs=1)))
    assert records[-1].kind == "done"
    assert "checkpoint" in {record.kind for record in records}


def refusal(job: Job, request: TrainingRequest) -> PreflightError:
    """Return the error with which a child refuses to begin; it must not have trained or made a checkpoint."""
    heard: list[str] = []
    with job.start(request) as child, pytest.raises(PreflightError) as caught:
        for record in iter_records(child, lambda: None):
            heard.append(record.kind)
    assert heard[:1] == ["start"]
    assert not {*heard} - {"start", "model"}
    return caught.value


def test_a_model_with_too_many_parameters_is_refused(job: Job) -> None:
    """The message has the count, the bound and the setting."""
    error = refusal(job, replace(job.request(1), max_parameters=20_000))
    assert isinstance(error, InvalidConfig)
    assert error.field == "model"
    assert error.message == (
        "model 'cnn-small-valid' has 98,938 parameters, but at most 20,000 are allowed here; "
        "use a smaller model or raise PREFLIGHT_MAX_PARAMETERS"
    )


Mount = Callable[[str], Path]
"""Mounts a file system with the given options."""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mount]:
    """Return what mounts a file system of the test's own; needs root."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"disk {len(places)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting a file system needs root")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", str(place)], check=True)  # noqa: S607 - only after `mount` was found


Move = Callable[[TrainingRequest, Path], TrainingRequest]

MOVED: dict[str, tuple[Move, str]] = {
    "the model": (lambda request, place: replace(request, artifact=place), "PREFLIGHT_ARTIFACT_DIR"),
    "its checkpoints": (lambda request, place: replace(request, checkpoints=place), "PREFLIGHT_STATE_DIR"),
}
"""What goes to another disk, how to ask for that, and the setting that does."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", MOVED)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("size=1m", r"{what} need.*the file system of {place} has 1\.0 MiB free.*or set {setting} to a larger one"),
        ("ro", "{what} cannot be written to {place}, as {disk} is not a writable directory; set {setting} to one"),
    ],
    ids=["too small", "read-only"],
)
def test_an_unsuitable_disk_is_refused_before_training(
    job: Job, mounted: Mount, what: str, options: str, message: str
) -> None:
    """Where, why, and which setting to change; root, whom no permission bits stop, is told, too."""
    moved, setting = MOVED[what]
    disk = mounted(options)
    error = refusal(job, moved(job.request(1), disk / "1"))
    assert isinstance(error, ArtifactError)
    named = {"place": re.escape(str(disk / "1")), "disk": re.escape(str(disk))}
    assert re.fullmatch(message.format(what=what, setting=setting, **named), error.message)


@pytest.mark.slow
def test_what_lies_there_already_makes_room(job: Job, mounted: Mount) -> None:
    """A disk with room for three checkpoints and no more is no reason to refuse to go on from two of them."""
    disk = replace(job, directory=mounted("size=10m"), seconds=3600.0)

    def request(attempt: int) -> TrainingRequest:
        return replace(disk.request(attempt), artifact=job.directory / "staged")

    with disk.start(request(1)) as child, pytest.raises(ChildStopped):
        for record in iter_records(child, lambda: None):
            if record.kind == "epoch" and record.payload["epoch"] == 2:
                child.ask_to_stop()
    assert [record.kind for record in disk.finish(request(2))][2] == "resumed"
