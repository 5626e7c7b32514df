"""The report as a feature: a page in the directory of each model, and one of a calibration alone."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue
from pydantic_core import to_json

from calibration.result import CalibrationResult
from preflight.wire import TrainJob
from preflight.wire.configuration import configuration
from training.artifacts.model_dir import REPORT
from training.process.runner import run_child
from training.system.requirements import require_packages
from worker.config.settings import Settings, child_environment
from worker.features.report import child
from worker.features.report.history import History
from worker.features.report.request import PACKAGES, REQUEST, CalibrationReportRequest, ReportRequest, missing
from worker.jobs.context import JobContext
from worker.jobs.hooks import Extra, Feature
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.payloads import choice_facts
from worker.jobs.stages.training import TrainingRun

if TYPE_CHECKING:
    from worker.jobs.hooks import Renderer

TIMEOUT_SECONDS: Final = 60.0
"""Seconds for a report: matplotlib may search all fonts of a slow disk at its first use."""


def _sinks(settings: Settings, *_: TrainJob | str | int) -> tuple[History, ...]:
    return () if settings.report == "off" else (History(),)


def _preloads(settings: Settings) -> tuple[str, ...]:
    return () if settings.report == "off" else (child.MODULE, "worker.features.report.page")


def _select(context: JobContext, training: TrainingRun | None) -> dict[str, JsonValue] | None:
    if training is None or context.settings.report == "off":
        return None
    if (lacking := missing()) is not None:
        context.warn(lacking)
        return None
    kept: dict[str, JsonValue] = REQUEST.dump_python(_request(context, training), mode="json")
    return kept


def _request(context: JobContext, training: TrainingRun) -> ReportRequest:
    choice = training.choice
    history = next((sink for sink in context.sinks if isinstance(sink, History)), History())
    return ReportRequest(
        job_id=context.job_id,
        artifact=context.paths.artifact,
        store=training.store.path,
        why=choice.why,
        config=configuration(training.job),
        facts=choice_facts(choice, training.spec, training.resources),
        finding=choice.finding,
        prediction=choice.prediction if training.plan == choice.plan else None,
        calibration_s=choice.calibration_seconds,
        training_s=training.seconds,
        losses=tuple(history.points),
        group=history.group(),
    )


def _run(context: JobContext, request: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    run_job_child(
        context, "report", child.MODULE, to_json(request), seconds=TIMEOUT_SECONDS, server=context.extras_server
    )
    return {"report": str(Path(str(request["artifact"])) / REPORT)}


def _renderer(settings: Settings) -> "Renderer":
    require_packages(PACKAGES, "--report needs it", "report")
    return partial(_render, settings)


def _render(settings: Settings, result: CalibrationResult, subject: str, facts: dict[str, str]) -> str:
    """Return the page of a calibration; a child process renders it."""
    environment = {**child_environment(), "MPLCONFIGDIR": str(settings.cache_dir / "matplotlib")}
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        target = Path(directory) / REPORT
        body = REQUEST.dump_json(CalibrationReportRequest(target=target, subject=subject, facts=facts, result=result))
        run_child(child.MODULE, body, Path(directory), environment, task="report")
        return target.read_text(encoding="utf-8")


PAGE: Final = Extra(
    name="report", event="report_ready", field="report", is_repeated=True, select=_select, run=_run,
    explain=lambda _, error: f"there is no {REPORT}: {error}",
)  # fmt: skip
FEATURE: Final = Feature(sinks=_sinks, extras=lambda _: (PAGE,), preloads=_preloads, renderer=_renderer)
