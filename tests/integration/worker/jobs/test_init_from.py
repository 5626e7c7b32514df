"""Trainings that start from a trained model: by job, alias and hash; what does not suit is refused with both named."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.files.pictures import imported, save_tree
from support.worker.services import digits_job

from preflight.errors import InvalidConfig
from preflight.events.sentences import sentence
from preflight.wire import AnyEvent, TrainResult, parse_job
from training.artifacts.loading import ModelArtifact, find
from training.artifacts.model_dir import MANIFEST, MODEL
from training.data.dataset_info import DatasetInfo
from worker.config.settings import Settings, load
from worker.jobs.local.training import train_local
from worker.jobs.stages.parent import FILE
from worker.models.store import Author, open_store
from worker.state.paths import STAGING

pytestmark = pytest.mark.covers_children


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model of digits was trained."""

    settings: Settings
    parent: TrainResult
    said: list[str] = field(default_factory=list)
    """The events of the last training, as sentences."""

    def train(self, **fields: object) -> TrainResult:
        self.said.clear()
        return train_local(digits_job(**fields), self.settings, lambda _: None, sink=self)

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - a sink's
        self.said.append(sentence(event))

    def refusal(self, **fields: object) -> str:
        with pytest.raises(InvalidConfig) as caught:
            self.train(**fields)
        assert caught.value.field == "init_from"
        return caught.value.message

    def weights(self, job_id: str) -> dict[str, np.ndarray]:
        return load_file(self.settings.artifact_dir / job_id / MODEL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, digits_store: DatasetInfo) -> Place:
    root = tmp_path_factory.mktemp("init")
    settings = load(
        data_dir=root / "data", artifact_dir=root / "artifacts", cache_dir=digits_store.path.parents[1],
        state_dir=root / "state", report="off",
    )  # fmt: skip
    trained = train_local(digits_job(job_id="first", epochs=2), settings, lambda _: None)
    open_store(settings).promote("production", settings.artifact_dir / "first", Author(by="a test"))
    return Place(settings, trained)


def test_a_training_starts_from_a_model(place: Place) -> None:
    """With its weights, which the smallest of steps leaves as they are; result, manifest and event name the parent."""
    digest = str(place.parent.model_sha256)
    found = place.train(
        job_id="child", init_from=f"production@{digest[:10]}", learning_rate=1e-9, max_steps=1, deterministic=True
    )
    again = place.train(job_id="again", init_from="first", learning_rate=1e-9, max_steps=1, deterministic=True)
    assert found.model_sha256 == again.model_sha256
    assert found.parent is not None
    assert found.parent.model_dump() == {
        "init_from": f"production@{digest[:10]}", "job_id": "first", "model_sha256": digest, "dataset": "digits",
        "dataset_sha256": None, "new_head": False,
    }  # fmt: skip
    manifest = json.loads((place.settings.artifact_dir / "child" / MANIFEST).read_text())
    assert manifest["parent"] == found.parent.model_dump()
    before, after = place.weights("first"), place.weights("child")
    for name, tensor in before.items():
        if "running" not in name and "num_batches" not in name:  # batch norm's statistics move with every batch
            assert np.allclose(tensor, after[name], atol=1e-6), name
    assert any(
        f"Starts from the model {digest[:12]} of job first, which was trained on digits" in one for one in place.said
    )


def test_another_number_of_classes_draws_a_new_head(place: Place, tmp_path: Path) -> None:
    imported(place.settings.data_dir, save_tree(tmp_path / "shapes", count=60), "shapes")
    found = place.train(job_id="shapes", dataset="shapes", init_from="production", learning_rate=1e-9, max_steps=1)
    assert found.parent is not None
    assert found.parent.new_head
    before, after = place.weights("first"), place.weights("shapes")
    heads = [name for name in before if before[name].shape != after[name].shape]
    assert {before[name].shape[0] for name in heads} == {10}
    assert {after[name].shape[0] for name in heads} == {4}
    body = [name for name in before if name not in heads and name.endswith("weight")]
    assert body
    assert all(np.allclose(before[name], after[name], atol=1e-6) for name in body)
    assert any("its last layer is drawn anew for 4 classes instead of 10" in one for one in place.said)


def damage(directory: Path) -> None:
    content = bytearray((directory / MODEL).read_bytes())
    content[-1] ^= 1
    (directory / MODEL).write_bytes(content)


def delete(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def link(directory: Path) -> None:
    directory.rename(directory.parent.parent / "elsewhere")
    directory.symlink_to("../elsewhere")


SPOILED: dict[str, Callable[[Path], object]] = {
    "running": lambda directory: directory.rename(directory.parent / STAGING / "spoiled"),
    "failed": lambda directory: (directory / MANIFEST).rename(directory / "other.json"),
    "deleted": delete,
    "damaged": damage,
    "no model": lambda directory: (directory / MODEL).write_text("no safetensors"),
    "a link elsewhere": link,
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_model_that_is_not_whole_is_refused(place: Place, kind: str) -> None:
    """Its job runs still, has failed or was deleted, or its files are damaged; no process of a training starts."""
    directory = place.settings.artifact_dir / f"spoiled-{kind.replace(' ', '-')}"
    directory.mkdir()
    for path in (place.settings.artifact_dir / "first").iterdir():
        if path.is_file():
            (directory / path.name).write_bytes(path.read_bytes())
    SPOILED[kind](directory)
    message = place.refusal(init_from=directory.name)
    assert f"init_from is {directory.name!r}: no alias is named {directory.name!r}" in message
    assert "may be running, have failed or be deleted" in message


def test_what_does_not_suit_is_refused_with_both_named(place: Place, tmp_path: Path) -> None:
    imported(place.settings.data_dir, save_tree(tmp_path / "wide", count=60, side=32), "wide")
    assert "whose network is 'small', but the job trains 'cnn'" in place.refusal(model="cnn", init_from="production")
    assert "reads images of 1x28x28, but those of wide@1 are 1x32x32" in place.refusal(
        dataset="wide", init_from="first"
    )
    assert "no model 'abcdef01'" in place.refusal(init_from="production@abcdef01")
    assert "no alias is named '..'" in place.refusal(init_from="..")
    for path in ("../first", "a/b", "production@xyz", "/etc/passwd", "~models"):
        with pytest.raises(InvalidConfig, match="init_from"):
            parse_job({"type": "preflight.train.v1", "dataset": "digits", "init_from": path})


def test_a_job_keeps_the_model_that_it_began_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its alias may point elsewhere by the next attempt, which finds the first one by hash, or says what changed."""
    store, first = open_store(place.settings), place.settings.artifact_dir / "first"
    store.promote("moving", first, Author(by="a test"))
    other = place.train(job_id="other", seed=9)
    found: list[str] = []

    def interrupted(*_: object, **__: object) -> None:
        raise InvalidConfig("interrupted", field="init_from")

    with monkeypatch.context() as patched:
        patched.setattr("worker.jobs.pipeline.select_plan", interrupted)
        assert place.refusal(job_id="moved", init_from="moving") == "interrupted"
    store.promote("moving", place.settings.artifact_dir / "other", Author(by="a test"))
    with monkeypatch.context() as patched:
        patched.setattr("worker.jobs.pipeline.select_plan", interrupted)

        def noted(path: Path) -> ModelArtifact:
            found.append(path.parent.name)
            return find(path)

        patched.setattr("worker.jobs.stages.parent.find", noted)
        assert place.refusal(job_id="moved", init_from="moving") == "interrupted"
        assert found == ["~kept"]
        kept = place.settings.state_dir / "jobs" / "moved" / FILE
        kept.write_text(kept.read_text().replace(str(place.parent.model_sha256), "ab" * 32))
        message = place.refusal(job_id="moved", init_from="moving")
    assert f"was the model {'ab' * 6} when the job began and is {str(other.model_sha256)[:12]} now" in message
