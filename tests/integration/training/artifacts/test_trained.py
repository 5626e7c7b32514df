"""What can be had of a trained model: its report, what it sees in pictures, and itself as ONNX."""

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import JsonValue
from safetensors.numpy import load_file
from support.calibration.odd_findings import finding
from support.web.pages import Page
from support.worker.services import digits_job

from preflight.errors import PreflightError
from training.artifacts.evaluation import EVALUATION
from training.artifacts.model_dir import MANIFEST, REPORT
from training.artifacts.predictions import PREDICTIONS, read
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import open_dataset
from training.process.child import Child
from training.process.runner import iter_records
from worker.features.report import child as report_child
from worker.features.report.request import REQUEST, ReportRequest

pytestmark = pytest.mark.covers_children
NASTY = "</title><script>alert('x')</script>$\\frac{1}{0}$"


@dataclass(frozen=True, slots=True)
class ModelArtifact:
    """A finished `preflight train`, and where it may be asked about its model."""

    artifact: Path
    result: dict[str, JsonValue]
    environment: dict[str, str]

    def run(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "worker.cli", *map(str, arguments)]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, digits_store: DatasetInfo) -> ModelArtifact:
    """A model of digits that `preflight train` leaves, its report made."""
    root = tmp_path_factory.mktemp("trained")
    environment = {
        **os.environ, "PREFLIGHT_REPORT": "auto", "PREFLIGHT_DATA_DIR": str(root),
        "PREFLIGHT_CACHE_DIR": str(digits_store.path.parents[1]), "PREFLIGHT_STATE_DIR": str(root / "state"),
        "PREFLIGHT_ARTIFACT_DIR": str(root / "artifacts"),
    }  # fmt: skip
    job = digits_job(epochs=2, job_id="digits", profile=True)
    (root / "job.json").write_text(job.model_dump_json(exclude_unset=True))
    asking = ModelArtifact(root / "artifacts" / "digits", {}, environment)
    done = asking.run("train", "--file", root / "job.json", "--json")
    assert done.returncode == 0, done.stderr
    assert '"level": "warning"' not in done.stderr
    return ModelArtifact(asking.artifact, json.loads(done.stdout), environment)


@pytest.fixture(scope="module")
def exported(trained: ModelArtifact) -> Path:
    """The same model as `preflight export` leaves it, beside the other."""
    done = trained.run("export", trained.artifact)
    assert done.returncode == 0, done.stderr
    path = trained.artifact / "model.onnx"
    assert done.stdout.startswith(f"{path}  297 test samples are recognized as by the model, their probabilities")
    assert float(done.stdout.split()[-1]) < 1e-4
    return path


def test_a_training_leaves_a_report(trained: ModelArtifact) -> None:
    """One page beside the model, of what the model said of the test set, and nothing from outside."""
    assert trained.result["report"] == str(trained.artifact / REPORT)
    page = Page((trained.artifact / REPORT).read_text())
    assert "://" not in (trained.artifact / REPORT).read_text()
    for heading in ("Learning", "Confusion matrix", "Most confident errors", "Reliability diagram",
                    "Time per phase", "Predicted and measured time", "Calibration", "Manifest"):  # fmt: skip
        assert heading in page.text
    probabilities, labels = read(trained.artifact / PREDICTIONS)
    wrong = int((probabilities.argmax(1) != labels).sum())
    assert trained.result["test_accuracy"] == pytest.approx((len(labels) - wrong) / len(labels), abs=1e-5)
    assert f"{wrong} of {len(labels)} samples wrong" in page.text
    assert page.tags.count("img") == min(25, wrong)
    assert "calibration is off" in page.text
    assert all(phase in page.text for phase in ("forward", "backward", "optimizer", "the rest"))
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    manifest = json.loads((trained.artifact / MANIFEST).read_text())
    assert set(manifest["sha256"]) == {"model.safetensors", PREDICTIONS, EVALUATION}
    assert manifest["input"]["shape"] == [1, 28, 28]


def test_a_report_shows_a_calibration_and_no_name_is_obeyed(
    trained: ModelArtifact, digits_store: DatasetInfo, tmp_path: Path
) -> None:
    """The picture of a finding is part of it, and what a user named stays text."""
    found = finding()
    request = ReportRequest(
        job_id=NASTY, artifact=trained.artifact, store=digits_store.path, why="as measured", facts={NASTY: NASTY},
        finding=found, prediction=found.prediction, calibration_s=4.0, training_s=9.0, losses=((0.5, 2.0), (1.5, 1.0)),
    )  # fmt: skip
    before = (trained.artifact / REPORT).read_bytes()
    with Child(report_child.MODULE, REQUEST.dump_json(request), tmp_path, dict(os.environ)) as child:
        *_, done = iter_records(child, lambda: None)
    assert done.kind == "done"
    page = Page((trained.artifact / REPORT).read_text())
    (trained.artifact / REPORT).write_bytes(before)
    assert page.text.count("<script>") >= 3
    for words in ("as fast as your own plan", "Measurements of each trial", "Memory against micro-batch", "predicted"):
        assert words in page.text


def test_digits_are_recognized_in_pictures(
    trained: ModelArtifact, exported: Path, digits_store: DatasetInfo, tmp_path: Path
) -> None:
    """As the data set's images and as pictures of other sizes, colours and places; by the model and by its ONNX."""
    probabilities, labels = read(trained.artifact / PREDICTIONS)
    sure = np.flatnonzero((probabilities.argmax(1) == labels) & (probabilities.max(1) > 0.98))[:8]
    images = load_file(digits_store.path)["test_images"]
    assert len(set(labels[sure])) > 3
    expected = {}
    for sample in sure:
        image = Image.fromarray(images[sample, 0])
        wide = Image.new("L", (640, 360))
        wide.paste(image.resize((200, 200), Image.Resampling.BICUBIC), (400, 100))
        dark = Image.fromarray(255 - np.asarray(wide))
        for name, picture in (("as it is.png", image), ("wide.png", wide), ("dark.jpg", dark.convert("RGB"))):
            path = tmp_path / f"{sample} {name}"
            picture.save(path)
            expected[str(path)] = int(labels[sample])
    for model in (trained.artifact / "model.safetensors", exported):
        done = trained.run("predict", "--json", model, *expected)
        assert done.returncode == 0, done.stderr
        seen = [json.loads(line) for line in done.stdout.splitlines()]
        assert {each["image"]: each["label"] for each in seen} == expected
        for each in seen:
            assert each["confidence"] == max(each["probabilities"]) == each["probabilities"][each["label"]]


def test_a_bad_picture_does_not_keep_the_others_from_being_looked_at(
    trained: ModelArtifact, exported: Path, tmp_path: Path
) -> None:
    """Each refusal is a sentence, the exit code is 2 at the end, and a model that is none is said to be none."""
    good, empty = tmp_path / "good\n.png", tmp_path / "empty.png"
    empty.touch()
    pixels = np.zeros((50, 50), dtype=np.uint8)
    pixels[10:40, 24:28] = 255
    Image.fromarray(pixels).save(good)
    tagged = tmp_path / "tagged.jpg"  # its EXIF has a width that is no whole number: Pillow raises struct.error
    tags = struct.pack("<HHIf", 0x0100, 11, 1, 1.5) + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + struct.pack("<I", 0)
    Image.fromarray(pixels).save(tagged, exif=exif)
    done = trained.run("predict", exported, empty, tagged, good, tmp_path / "none.png")
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert line.split()[0] == "1"
    assert line.endswith("good\\n.png")
    refusals = done.stderr.splitlines()
    assert [line.partition(": ")[2].split()[0] for line in refusals] == [
        str(empty), str(tagged), str(tmp_path / "none.png"),
    ]  # fmt: skip
    no_model = trained.run("predict", tmp_path, good)
    assert (no_model.returncode, no_model.stdout) == (2, "")
    assert "holds no whole model" in no_model.stderr
    not_exported = tmp_path / "other.onnx"
    not_exported.write_text("no protobuf")
    assert trained.run("predict", not_exported, good).returncode == 2


def test_an_export_that_says_something_else_is_refused(
    trained: ModelArtifact, exported: Path, digits_store: DatasetInfo
) -> None:
    """Held against another model, the exported one takes samples for other classes."""
    import torch

    from training.artifacts.loading import find, load
    from training.artifacts.onnx_child import largest_difference

    store, model = open_dataset(digits_store.path), load(find(trained.artifact))
    assert largest_difference(model, exported, store.test_images, 1) < 1e-4
    with torch.no_grad():
        list(model.parameters())[-2].neg_()
    with pytest.raises(PreflightError, match=r"it takes test sample \d+ for another class than the model does"):
        largest_difference(model, exported, store.test_images, 1)
