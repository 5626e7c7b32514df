"""What of a run is kept for its report, when none is made, and that none of that harms the run."""

import itertools
from pathlib import Path
from typing import Literal

import pytest
from pydantic import JsonValue
from services import digits_job

from training.config.plan import Plan
from training.data.dataset_store import StoreInfo
from training.errors import Cancelled, MissingPackage, PreflightError, TimedOut
from training.system import requirements as installed
from worker.config.settings import Settings
from worker.jobs.heartbeat import run_job
from worker.jobs.paths import places
from worker.jobs.pipeline import Interrupted, Run, Unwatched
from worker.report import request as report
from worker.report.request import MOST_POINTS, Losses, ReportRequest
from worker.wire import AnyEvent, JobWarning, TrainResult


class Kept:
    """A sink that keeps events."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - every sink's signature
        self.events.append(event)

    @property
    def warnings(self) -> list[str]:
        assert all(isinstance(event, JobWarning) for event in self.events)
        return [event.message for event in self.events if isinstance(event, JobWarning)]


class Ending(Unwatched):
    """A watch that ends the run at the first look."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def look(self) -> None:
        raise self._error


def a_run(tmp_path: Path, kept: Kept, *, switch: Literal["auto", "off"] = "auto", end: Exception | None = None) -> Run:
    settings = Settings(
        artifact_dir=tmp_path / "artifacts", cache_dir=tmp_path / "cache", state_dir=tmp_path / "state", report=switch
    )
    return Run(
        settings=settings, worker="w", job_id="j", attempt=1, sinks=(kept,), places=places(settings, "j", 1),
        watch=Unwatched() if end is None else Ending(end),
    )  # fmt: skip


def request(artifact: Path) -> ReportRequest:
    """Ask for a report on what is not there."""
    return ReportRequest(
        job_id="j", artifact=artifact, store=artifact / "store", why="calibration is off", facts={}, finding=None,
        prediction=None, calibration_s=0.0, training_s=1.0,
    )  # fmt: skip


def progress(epoch: int, step: int, loss: float) -> dict[str, JsonValue]:
    return {"epoch": epoch, "step": step, "steps": 100, "loss": loss}


def test_the_losses_of_a_long_training_stay_few() -> None:
    """However many windows: spread over all of it, in order."""
    losses = Losses()
    for window in range(100_000):
        losses.hear(progress(1 + window // 100, window % 100, 1.0))
    places = [at for at, _ in losses.points]
    assert MOST_POINTS / 2 <= len(places) < MOST_POINTS
    assert places == sorted(places)
    assert places[-1] > 990
    assert max(later - earlier for earlier, later in itertools.pairwise(places)) < 6


def test_what_is_trained_again_is_drawn_once() -> None:
    """After a kill the training goes on from its checkpoint; what came after that is replaced."""
    losses = Losses()
    for step, loss in ((10, 3.0), (20, 2.0), (30, 1.0), (20, 2.5), (40, 0.5)):
        losses.hear(progress(1, step, loss))
    assert losses.points == [(0.1, 3.0), (0.2, 2.5), (0.4, 0.5)]


def test_without_matplotlib_a_warning_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is installed wherever these tests run, so its absence is pretended."""
    monkeypatch.setattr(report, "find_spec", {}.get)
    kept = Kept()
    assert not a_run(tmp_path, kept)._reported(request(tmp_path))
    (warning,) = kept.warnings
    assert "pip install 'preflight-worker[report]'" in warning


def test_a_report_that_is_not_wanted_is_not_missed(tmp_path: Path) -> None:
    """Nothing is started and nothing is said."""
    kept = Kept()
    assert not a_run(tmp_path, kept, switch="off")._reported(request(tmp_path))
    assert kept.warnings == []


def test_a_report_that_fails_is_a_warning(tmp_path: Path) -> None:
    """The real child, on an artifact that is not there."""
    kept = Kept()
    assert not a_run(tmp_path, kept)._reported(request(tmp_path / "nowhere"))
    assert kept.warnings == [f"there is no report.html: {tmp_path}/nowhere holds no whole model"]


@pytest.mark.parametrize("error", [Interrupted(), Cancelled("cancelled on request")])
def test_what_ends_the_run_ends_its_report(tmp_path: Path, error: Exception) -> None:
    """A redeploy or a cancellation is not taken for a failure of the report."""
    kept = Kept()
    with pytest.raises(type(error)):
        a_run(tmp_path, kept, end=error)._reported(request(tmp_path))
    assert kept.warnings == []


def test_a_job_whose_time_ends_in_the_report_has_a_model(tmp_path: Path) -> None:
    """It is trained: that the page took too long is no reason to throw it away."""
    kept = Kept()
    error: PreflightError = TimedOut("the job ran longer than 5 s")
    assert not a_run(tmp_path, kept, end=error)._reported(request(tmp_path))
    assert kept.warnings == ["there is no report.html: the job ran longer than 5 s"]


def test_a_job_that_cannot_be_exported_is_refused_before_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is prepared or trained for it, and the sentence names the extra; its absence is pretended."""
    monkeypatch.setattr(installed, "find_spec", {}.get)
    kept = Kept()
    with pytest.raises(MissingPackage, match=r"onnxruntime is not installed.*pip install 'preflight-worker\[onnx\]'"):
        run_job(a_run(tmp_path, kept), digits_job(onnx=True))
    assert [event.type for event in kept.events] == ["job_started", "job_failed"]


def test_an_export_that_fails_is_a_warning(tmp_path: Path, digits_store: StoreInfo) -> None:
    """The real child, before anything was trained."""
    kept = Kept()
    assert not a_run(tmp_path, kept)._as_onnx(Plan(threads=1, micro_batch=32), digits_store)
    (warning,) = kept.warnings
    assert warning.startswith("there is no model.onnx: ")
    assert "holds no whole model" in warning
