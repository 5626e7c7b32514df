"""Response bodies of the HTTP interface."""

from pydantic import BaseModel, ConfigDict

from worker.wire import JobId, JobState, Status, TrainResult


class ApiModel(BaseModel):
    """Base of the response bodies."""

    model_config = ConfigDict(frozen=True)


class Enqueued(ApiModel):
    """A job in the queue."""

    job_id: JobId
    created: bool
    """False: a job with this id existed already, and nothing was enqueued."""


class JobDetail(JobState):
    """State of a job, and its result once it is finished."""

    result: TrainResult | None = None


class Cancelling(ApiModel):
    """A job that was asked to stop."""

    job_id: JobId
    status: Status
    """At this moment: a running job stops within a step."""


class Problem(ApiModel):
    """Why a request was refused."""

    reason: str
    field: str | None = None
    message: str
    """One sentence: what, which value, which bound, what to do."""
