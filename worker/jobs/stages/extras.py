"""Extras stage: work that follows the result of a job; each extra has its event, and its failure is a warning."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue
from pydantic_core import to_json

from preflight.errors import PreflightError
from preflight.recognizer.onnx import ONNX
from preflight.wire import AnyEvent, TrainResult
from training.artifacts import onnx_child
from training.artifacts.onnx_child import OnnxRequest
from worker.jobs.context import JobContext
from worker.jobs.hooks import Extra
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.pending_extras import Extras, pending_attempts, read_pending
from worker.jobs.stages.training import TrainingRun
from worker.state.control import Interrupted

ONNX_TIMEOUT: Final = 600.0
"""Time limit of an ONNX export and its comparison with the model, in seconds."""


def _ask_for_onnx(context: JobContext, training: TrainingRun | None) -> dict[str, JsonValue] | None:
    if training is None or not training.job.onnx:
        return None
    artifact = context.paths.artifact
    request = OnnxRequest(
        artifact=artifact, target=artifact / ONNX, store=training.store.path, threads=training.plan.threads
    )
    kept: dict[str, JsonValue] = onnx_child.REQUEST.dump_python(request, mode="json")
    return kept


def _export_onnx(context: JobContext, request: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    run_job_child(context, "ONNX export", onnx_child.MODULE, to_json(request), seconds=ONNX_TIMEOUT)
    return {"onnx": str(request["target"])}


ONNX_FILE: Final = Extra(
    name="onnx", event="onnx_ready", field="onnx", is_repeated=True, select=_ask_for_onnx, run=_export_onnx,
    explain=lambda _, error: f"there is no {ONNX}: {error}",
)  # fmt: skip


def known_extras(context: JobContext) -> dict[str, Extra]:
    """Return the extras that may follow a result here, by name and in order."""
    of_features = (extra for feature in context.features for extra in feature.extras(context.settings))
    return {extra.name: extra for extra in (ONNX_FILE, *of_features)}


def select_extras(context: JobContext, result: TrainResult, training: TrainingRun | None = None) -> Extras:
    """Return the extras of a job; without its training, those that need only the published model."""
    asked = {name: extra.select(context, training) for name, extra in known_extras(context).items()}
    requests = {name: request for name, request in asked.items() if request is not None}
    return Extras(result=result, left=tuple(requests), requests=requests)


def without_told(
    context: JobContext, extras: Extras, events: Sequence[tuple[AnyEvent, TrainResult | None]]
) -> Extras:  # fmt: skip
    """Return the extras without those whose event is among `events` of the attempt, which may outlive a kill."""
    told: set[str] = set()
    for event, result in events:
        named = {extra.name for extra in known_extras(context).values() if _is_told(extra, event)}
        if named and result is not None:
            extras = replace(extras, result=result)
        told |= named
    left = tuple(extra for extra in extras.left if extra not in told)
    return extras if left == extras.left else replace(extras, left=left, tries=0)


def _is_told(extra: Extra, event: AnyEvent) -> bool:
    return event.type == extra.event and getattr(event, extra.field, None) is not None


def inherited_extras(context: JobContext, result: TrainResult) -> Extras | None:
    """Return the extras that an earlier attempt left to do when it died; None where it recorded none."""
    job = context.paths.job
    for attempt in pending_attempts(job):
        pending = read_pending(job, attempt)
        if pending is not None:
            known = known_extras(context).values()
            done = {extra.name for extra in known if getattr(result, extra.field, None) is not None}
            left = tuple(name for name in pending.extras.left if name not in done)
            return replace(pending.extras, result=result, left=left, tries=0)
    return None


def add_extras(context: JobContext, extras: Extras) -> Extras:
    """Do the extras that are left, in order; return those left then: one to be tried again later, and those after it.

    Extras that no feature of this worker knows, or that its settings do not ask for any more, are left out.

    Raises:
        Interrupted, Superseded: from the job's control; no try was spent.
    """
    known = known_extras(context)
    while extras.left:
        context.control.assert_current()
        extra = known.get(extras.left[0])
        if extra is None:
            extras = replace(extras, left=extras.left[1:], tries=0)
            continue
        if extras.tries == context.extras.max_tries:
            error = PreflightError(f"its process died {extras.tries} times")
            extras = _fail(context, extra, replace(extras, tries=extras.tries - 1), error)
            continue
        context.extras.save(replace(extras, tries=extras.tries + 1))  # a death would leave no other trace
        try:
            after = _add(context, extra, extras)
        except Interrupted:
            context.extras.save(extras)
            raise
        if after.left:  # else the file stays until the events are published
            context.extras.save(after)
        if after.left == extras.left:
            return after
        extras = after
    return extras


def _add(context: JobContext, extra: Extra, extras: Extras) -> Extras:
    """Do the first of the extras that are left, and emit its event, or a warning; returns the others."""
    try:
        fields = extra.run(context, extras.requests.get(extra.name, {}))
    except (PreflightError, OSError) as error:
        return _fail(context, extra, extras, error)
    result = extras.result.model_copy(
        update={name: value for name, value in fields.items() if name in TrainResult.model_fields}
    )
    context.emit(extra.event, fields, result)
    return replace(extras, left=extras.left[1:], result=result, tries=0)


def _fail(context: JobContext, extra: Extra, extras: Extras, error: Exception) -> Extras:
    """Warn of a failure; return what is left: the extra, too, where it is repeated and its failure may pass."""
    tries = extras.tries + 1
    may_pass = extra.is_repeated and (isinstance(error, OSError) or getattr(error, "retry", False))
    if may_pass and tries < context.extras.max_tries:
        context.warn(f"{extra.explain(context, error)}; it is tried again within minutes")
        return replace(extras, tries=tries)
    context.warn(extra.explain(context, error))
    return replace(extras, left=extras.left[1:], tries=0)
