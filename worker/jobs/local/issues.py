"""Labels that look wrong, for `preflight data issues`."""

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, JsonValue

from preflight.errors import InvalidConfig
from preflight.files.journal import Record
from preflight.wire import JOB_TYPE
from preflight.wire.job_parsing import parse_job
from training.loop import issues_child
from training.loop.issues_child import IssuesRequest
from worker.config.settings import Settings
from worker.jobs.local.training import local_context
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.dataset import pin_dataset, prepare_dataset
from worker.jobs.stages.planning import detect_resources


class Issue(BaseModel):
    """A sample whose label looks wrong."""

    model_config = ConfigDict(frozen=True)

    sample: int
    """Its number in the version, as `preflight data relabel` takes it."""
    given: str
    suggested: str
    own: float
    """Probability of the class that it is given."""
    probability: float
    """Of the suggested one."""


class Issues(BaseModel):
    """Samples of a version whose labels look wrong, the most suspicious first."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    samples: int
    estimated: int
    """Labels that are wrong, roughly."""
    accuracy: float
    """Share of the given labels that the trainings would have given, too."""
    seconds: float
    issues: tuple[Issue, ...]


def issues_local(name: str, settings: Settings, tell: Callable[[float], None], *, folds: int, most: int) -> Issues:
    """Find labels that look wrong; `tell` gets the seconds that it will take, once they are known.

    Raises:
        PreflightError: there is no such data set, or the training failed.
    """
    job = parse_job({"type": JOB_TYPE, "dataset": name}, require_dataset=settings.require_dataset)

    def on_record(record: Record) -> None:
        match record.kind, record.payload:
            case "estimate", {"seconds": int() | float() as seconds}:
                tell(float(seconds))

    with local_context(job, settings) as context:
        job = pin_dataset(context, job)
        store = prepare_dataset(context, job)
        if store.train_count + store.test_count < 4 * folds:
            raise InvalidConfig(f"{store.name} has too few samples for {folds} trainings; add some", field="dataset")
        request = IssuesRequest(
            store=store.path, model=job.model, folds=folds, threads=detect_resources(context).cores, most=most
        )
        done = run_job_child(
            context, "search for wrong labels", issues_child.MODULE, issues_child.REQUEST.dump_json(request),
            on_record=on_record,
        )  # fmt: skip
    names = store.class_names or tuple(map(str, range(store.classes)))
    return Issues.model_validate({**done, "dataset": store.name, "issues": _named(done["issues"], names)})


def _named(found: JsonValue, names: tuple[str, ...]) -> list[dict[str, JsonValue]]:
    listed: list[dict[str, JsonValue]] = []
    for each in found if isinstance(found, list) else []:
        match each:
            case [int(sample), int(given), int(suggested), own, probability]:
                listed.append({"sample": sample, "given": names[given], "suggested": names[suggested], "own": own,
                               "probability": probability})  # fmt: skip
    return listed
