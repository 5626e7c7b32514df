"""Labels that look wrong, for `preflight data issues` and the page; the findings are kept next to the store."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue

from preflight.errors import InvalidConfig
from preflight.files.atomic_files import write_atomically
from preflight.files.journal import Record
from preflight.wire import JOB_TYPE
from preflight.wire.job_parsing import parse_job
from training.importing.issues import Issues
from training.importing.run import Progress
from training.loop import issues_child
from training.loop.issues_child import FOLDS, IssuesRequest
from worker.config.settings import Settings
from worker.jobs.local.importing import catalogs
from worker.jobs.local.training import local_context
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.dataset import pin_dataset, prepare_dataset
from worker.jobs.stages.planning import detect_resources


@dataclass(frozen=True, slots=True)
class Search:
    """A search for wrong labels."""

    dataset: str
    folds: int = FOLDS
    """Number of trainings, each without a part of the samples."""
    most: int = 1_000
    """Largest number of samples that are listed."""
    threads: int | None = None
    """Largest number of threads; None: one for each processor."""


def issues_local(
    asked: Search, settings: Settings, tell: Callable[[Progress], None], check: Callable[[], None] = lambda: None
) -> Issues:
    """Find labels that look wrong; `tell` gets the progress once the time left is known.

    `check` is called several times a second, and ends the search by what it raises.

    Raises:
        PreflightError: there is no such data set, or the training failed.
    """
    job = parse_job({"type": JOB_TYPE, "dataset": asked.dataset}, require_dataset=settings.require_dataset)

    def on_record(record: Record) -> None:
        match record.kind, record.payload:
            case "step", {"done": int(done), "steps": int(steps), "seconds_left": int() | float() as left}:
                tell(Progress(stage="training", read=done, total=steps, seconds_left=float(left)))

    with local_context(job, settings) as context:
        job = pin_dataset(context, job)
        store = prepare_dataset(context, job)
        if store.train_count + store.test_count < 4 * asked.folds:
            raise InvalidConfig(
                f"{store.name} has too few samples for {asked.folds} trainings; add some", field="dataset"
            )
        cores = detect_resources(context).cores
        request = IssuesRequest(
            store=store.path, model=job.model, folds=asked.folds, threads=min(cores, asked.threads or cores),
            most=asked.most,
        )  # fmt: skip
        done = run_job_child(
            context, "search for wrong labels", issues_child.MODULE, issues_child.REQUEST.dump_json(request),
            on_record=on_record, check=check,
        )  # fmt: skip
    names = store.class_names or tuple(map(str, range(store.classes)))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    found = Issues.model_validate({**done, "dataset": store.name, "at": at, "issues": _named(done["issues"], names)})
    if store.sha256 is not None:
        _keep(found, store.sha256, settings)
    return found


def _keep(found: Issues, sha256: str, settings: Settings) -> None:
    """Write the findings next to the store, for the page."""
    catalog, shared = catalogs(settings)
    write_atomically(catalog.issues(sha256), found.model_dump_json().encode())
    if shared is not None:
        shared.push_issues(catalog.find(found.dataset))


def _named(found: JsonValue, names: tuple[str, ...]) -> list[dict[str, JsonValue]]:
    listed: list[dict[str, JsonValue]] = []
    for each in found if isinstance(found, list) else []:
        match each:
            case [int(sample), int(given), int(suggested), own, probability]:
                listed.append({"sample": sample, "given": names[given], "suggested": names[suggested], "own": own,
                               "probability": probability})  # fmt: skip
    return listed
