"""Response bodies of the HTTP interface."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from preflight.client.notes import MAX_NOTE, MAX_TAGS, Tag
from preflight.wire import Count, JobId, JobState, Share, Status, TrainResult
from preflight.wire.configuration import ConfigField
from worker.jobs.local.predict import PictureReading


class ApiModel(BaseModel):
    """Base of the response bodies."""

    model_config = ConfigDict(frozen=True)


class Enqueued(ApiModel):
    """A job in the queue."""

    job_id: JobId
    created: bool
    """False: a job with this id existed already, and nothing was enqueued."""
    same_request: bool | None = None
    """Whether that job asks for the same; null: this one was created, or that is not known."""


class JobDetail(JobState):
    """State of a job, its place while it is in the queue, its configuration, and its result once it is finished."""

    position: Count | None = None
    """Number of jobs before it in the queue."""
    result: TrainResult | None = None
    config: tuple[ConfigField, ...] | None = None
    """Every setting of the job in effect, where its request is known."""
    note: str | None = None
    """Note that people wrote about the job."""
    tags: tuple[str, ...] | None = None
    deleting: bool | None = None
    """Whether a worker was asked to delete it."""
    kept_because: str | None = None
    """Why a worker has just refused to delete it."""


class JobFile(ApiModel):
    """A file of a finished model."""

    name: str
    bytes: Count
    href: str
    """Path of the file; where the service has a token, with a ticket that replaces it for a minute."""


class JobFiles(ApiModel):
    """Files of a finished model, as far as the service reaches them."""

    job_id: JobId
    source: Literal["disk", "url"] | None = None
    """Place from which they are read: the artifact directory of the service, or its artifact URL."""
    files: tuple[JobFile, ...] = ()
    message: str | None = None
    """Sentence about where they lie, if the service cannot reach them."""
    predicts: bool = False
    """Whether the service can ask the model about pictures."""


class Prediction(ApiModel):
    """What a model sees in a picture."""

    label: Count
    name: str
    """Name of the label's class."""
    confidence: Share
    """Probability of the label."""
    classes: tuple[str, ...]
    """Names of every label."""
    probabilities: tuple[Share, ...]
    """Probability of every label."""
    uncertain: bool | None
    """Whether the confidence lies below the model's measured threshold, or the picture shows several digits; null: the
    model has no threshold."""
    reading: PictureReading


class ModelVersion(ApiModel):
    """A promotion in the history of an alias."""

    number: int
    action: str
    """promote or rollback."""
    at: str
    by: str
    why: str
    job_id: str
    model: str
    dataset: str
    test_accuracy: float | None
    model_sha256: str
    former: int | None = None
    """Number of the promotion that a rollback returns to."""
    kept: bool
    """Whether its files are still there, so that it can be rolled back to."""


class NamedModel(ApiModel):
    """An alias and the model that it points to."""

    alias: str
    current: ModelVersion | None = None
    """The promotion in effect; null: the file of the alias is damaged, or its signature is wrong."""
    message: str | None = None
    """What is wrong with the alias."""
    shape: tuple[int, int, int] | None = None
    """Channels, height and width of the images that the model in use reads; null in a list."""
    history: tuple[ModelVersion, ...] = ()
    """Promotions, the newest first; empty in a list."""


class NamedModels(ApiModel):
    """All aliases."""

    models: tuple[NamedModel, ...]


class ChangeAlias(ApiModel):
    """A change of an alias: its author and the reason."""

    model_config = ConfigDict(extra="forbid")

    by: Annotated[str, Field(max_length=200)] = "http"
    why: Annotated[str, Field(max_length=1000)] = ""
    expect: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Number of the promotion that must be in effect; 0: the alias must be new; absent: the one now."""


class PromoteModel(ChangeAlias):
    """A change that points an alias to the model of a finished job."""

    job_id: JobId


class Cancelling(ApiModel):
    """A job that was asked to stop."""

    job_id: JobId
    status: Status
    """Status at this moment: a running job stops within a step."""


class Deleting(ApiModel):
    """A job that a worker was asked to delete."""

    job_id: JobId


class CancelJobs(ApiModel):
    """A request to cancel several jobs."""

    model_config = ConfigDict(extra="forbid")

    job_ids: Annotated[tuple[JobId, ...], Field(min_length=1, max_length=200)]


class ChangeNotes(ApiModel):
    """A note or tags in place of those that a job has; absent: they stay."""

    model_config = ConfigDict(extra="forbid")

    note: Annotated[str, Field(max_length=MAX_NOTE)] | None = None
    tags: Annotated[tuple[Tag, ...], Field(max_length=MAX_TAGS)] | None = None


class Refused(ApiModel):
    """A job that was not cancelled, and why."""

    job_id: JobId
    reason: str
    message: str


class CancelledJobs(ApiModel):
    """What became of a cancellation of several jobs."""

    cancelled: tuple[Cancelling, ...]
    refused: tuple[Refused, ...]


class Retried(ApiModel):
    """A job that is in the queue again."""

    job_id: JobId
    status: Literal["queued"] = "queued"


class Part(ApiModel):
    """A thread or a task of the web service that is started again when it ends."""

    name: str
    state: Literal["running", "recovering", "restarting", "ended"]
    """`recovering`: it was started again less than a minute ago; `restarting`: it is about to be started again."""
    restarts: Count


class Health(ApiModel):
    """A web service that answers."""

    status: Literal["ok", "degraded"]
    """`degraded`: a part has ended a moment ago."""
    parts: tuple[Part, ...] = ()


class Ready(ApiModel):
    """A web service whose Redis answers and can run jobs."""

    status: Literal["ok"] = "ok"


class Advice(ApiModel):
    """The runbook's advice on a failure reason."""

    reason: str
    text: str
    """Markdown."""


class Problem(ApiModel):
    """Why a request was refused."""

    reason: str
    field: str | None = None
    message: str
    """One sentence: what, which value, which bound, what to do."""
