"""What of a run is kept for its report, when none is made, and that none of that harms the run."""

import itertools
import re
from pathlib import Path

import pytest
from pydantic import JsonValue
from support.web.pages import Page
from support.worker.contexts import Ending, ListSink, context_of
from support.worker.job_events import event
from support.worker.services import digits_job

from calibration.choose import PlanChoice
from preflight.container.resources import detect
from preflight.contract.plan import Plan
from preflight.errors import MissingPackage
from preflight.recognizer.onnx import ONNX
from preflight.wire import TrainJob, TrainResult
from preflight.wire.configuration import configuration
from training.artifacts import onnx_child
from training.artifacts.onnx_child import OnnxRequest
from training.data.dataset_info import DatasetInfo
from training.system import requirements
from worker.broker.fencing import Superseded
from worker.features.report import request as report_request
from worker.features.report.history import MAX_POINTS, History
from worker.features.report.request import REQUEST, ReportRequest
from worker.features.report.templates import render_template
from worker.jobs.context import JobContext
from worker.jobs.outcome import Failed
from worker.jobs.pipeline import run_pipeline
from worker.jobs.stages.extras import add_extras, select_extras
from worker.jobs.stages.pending_extras import Extras
from worker.jobs.stages.training import TrainingRun
from worker.state.control import Interrupted

RESULT = TrainResult(job_id="j", attempt=1, status="finished")


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


def request(artifact: Path) -> ReportRequest:
    """Ask for a report on what is not there."""
    return ReportRequest(
        job_id="j", artifact=artifact, store=artifact / "store", why="calibration is off", facts={}, finding=None,
        prediction=None, calibration_s=0.0, training_s=1.0,
    )  # fmt: skip


def asked(name: str, request: dict[str, JsonValue]) -> Extras:
    return Extras(result=RESULT, left=(name,), requests={name: request})


def report_on(artifact: Path) -> Extras:
    """Return the extras of a job whose model is in `artifact`."""
    return asked("report", REQUEST.dump_python(request(artifact), mode="json"))


def trained(context: JobContext) -> TrainingRun:
    job = digits_job()
    store = DatasetInfo(
        name="digits", path=context.paths.job / "store", shape=(1, 28, 28), classes=10, train_count=1, test_count=1,
        mean=0.0, std=1.0, sources=(),
    )  # fmt: skip
    choice = PlanChoice(plan=Plan(threads=1, micro_batch=32, eval_batch=8), source="own", why="calibration is off")
    return TrainingRun(context=context, job=job, spec=job.spec(), choice=choice, resources=detect(), store=store)


def test_the_configuration_is_at_the_top() -> None:
    """Every setting; other values than the defaults are bold."""
    job = TrainJob.model_validate({"type": "preflight.train.v1", "dataset": "mnist", "epochs": 7})
    names = dict.fromkeys(
        ("title", "job_id", "headline", "effort", "learning", "learned", "why", "seconds", "off", "manifest"), ""
    )
    formed = event("group_formed", workers=2, members=["a.7", "<b>"], cores=[1, 0.5], memory_mb=[1024, 512], seconds=1,
                   message="two workers train")  # fmt: skip
    measured = event("group_measured", workers=2, members=["a.7", "<b>"], speeds=[812, 401], alone_samples_per_s=812,
                     group_samples_per_s=1100, speedup=1.35, kept=True, message="it pays")  # fmt: skip
    left = event("group_changed", workers=1, members=["a.7"], left=["<b>"], message="<b> has left")
    history = History()
    for each in (formed, measured, left):
        history.emit(each)
    group = history.group()
    page = render_template(
        "run_page.html", **names, config=configuration(job), group=group, test_set=None, predicted=None, section=None
    )
    assert group is not None
    assert group.workers == 1
    for text in ("a.7 1 core, 1,024 MiB 812", "<b> 0.5 cores, 512 MiB 401", "two workers train", "<b> has left"):
        assert text in " ".join(Page(page).text.split())
    assert "<dt>epochs</dt><dd><strong>7</strong></dd>" in page
    assert "<dt>momentum</dt><dd>0.9</dd>" in page
    assert page.index("Configuration") < page.index("Learning")
    assert "augmentation.scale" in Page(page).text


def test_the_losses_of_a_long_training_stay_few() -> None:
    """However many windows: spread over all of it, in order."""
    history = History()
    for window in range(100_000):
        history.add_loss(window / 100, 1.0)
    places = [at for at, _ in history.points]
    assert MAX_POINTS / 2 <= len(places) < MAX_POINTS
    assert places == sorted(places)
    assert places[-1] > 990
    assert max(later - earlier for earlier, later in itertools.pairwise(places)) < 6


def test_what_is_trained_again_is_drawn_once() -> None:
    """After a resume the points behind the checkpoint are replaced."""
    history = History()
    figures = {"accuracy": 0.5, "samples_per_s": 1.0, "eta_s": 1.0}
    for step, loss in ((10, 3.0), (20, 2.0), (30, 1.0), (20, 2.5), (40, 0.5)):
        history.emit(event("progress", epoch=1, epochs=1, step=step, steps=100, loss=loss, **figures))
    assert history.points == [(0.1, 3.0), (0.2, 2.5), (0.4, 0.5)]


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: ListSink) -> None:
    """It is installed wherever these tests run, so its absence is pretended."""
    monkeypatch.setattr(report_request, "find_spec", {}.get)
    context = context_of(tmp_path, sink)
    assert select_extras(context, RESULT, trained(context)).left == ()
    (warning,) = sink.only_warnings
    assert "pip install ./client '.[report]'" in warning


def test_a_report_that_is_not_wanted_is_not_missed(tmp_path: Path, sink: ListSink) -> None:
    context = context_of(tmp_path, sink, report="off")
    assert select_extras(context, RESULT, trained(context)).left == ()
    assert sink.only_warnings == []


def test_a_report_that_fails_is_a_warning(tmp_path: Path, sink: ListSink) -> None:
    """The real child, on an artifact that is not there."""
    context = context_of(tmp_path, sink)
    extras = select_extras(context, RESULT, trained(context))
    assert extras.left == ("report",)
    assert add_extras(context, extras).result == RESULT
    assert sink.only_warnings == [f"there is no report.html: {context.paths.artifact} holds no whole model"]


@pytest.mark.parametrize("error", [Interrupted(), Superseded()])
def test_what_ends_the_extras_is_no_failure_of_one(tmp_path: Path, error: Exception, sink: ListSink) -> None:
    context = context_of(tmp_path, sink, control=Ending(error))
    with pytest.raises(type(error)):
        add_extras(context, report_on(tmp_path))
    assert sink.only_warnings == []


def test_a_job_that_cannot_be_exported_is_refused_before_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: ListSink
) -> None:
    """Nothing is prepared or trained for it, and the sentence names the extra; its absence is pretended."""
    monkeypatch.setattr(requirements, "find_spec", {}.get)
    outcome = run_pipeline(context_of(tmp_path, sink), digits_job(onnx=True))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, MissingPackage)
    assert re.search(r"onnxruntime is not installed.*pip install ./client '.\[onnx\]'", outcome.error.message)
    assert [event.type for event in sink.events] == ["job_started", "job_failed"]


def test_an_export_that_fails_is_a_warning(tmp_path: Path, digits_store: DatasetInfo, sink: ListSink) -> None:
    """The real child, before anything was trained."""
    context = context_of(tmp_path, sink)
    artifact = context.paths.artifact
    onnx = OnnxRequest(artifact=artifact, target=artifact / ONNX, store=digits_store.path, threads=1)
    extras = asked("onnx", onnx_child.REQUEST.dump_python(onnx, mode="json"))
    assert add_extras(context, extras).result == RESULT
    (warning,) = sink.only_warnings
    assert warning.startswith("there is no model.onnx: ")
    assert "holds no whole model" in warning
