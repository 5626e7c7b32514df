"""Profile of a few training steps for `preflight profile`."""

from pydantic import BaseModel, ConfigDict, computed_field

from preflight.contract.plan import Plan
from preflight.wire import StepProfile, TrainJob
from training.loop import profiling_child
from training.loop.profiling_child import ProfileRequest
from training.process.launch import environment_for
from worker.config.settings import Settings
from worker.events.log_sink import Sink
from worker.jobs.local.training import local_context
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.dataset import pin_dataset, prepare_dataset
from worker.jobs.stages.planning import detect_resources, select_plan


class ProfileReport(BaseModel):
    """Times of the steps of one configuration."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    model: str
    batch_size: int
    plan: Plan
    import_s: float
    """Seconds to import torch."""
    build_s: float
    """Seconds to open the data set and to build the model and its optimizer."""
    warm_up: StepProfile
    """The first steps, apart from the others."""
    measured: StepProfile
    epoch_steps: int
    validation_samples: int
    validation_s: float
    """Seconds to validate all of them, estimated from the first thousand."""
    median_step_s: float
    slowest_step_s: float
    disturbed: str
    """Other work on the processors meanwhile; empty where there was none."""

    @property
    def samples_per_s(self) -> float:
        """Training samples per second, over all steps after the warm-up."""
        return self.batch_size / self.measured.average_batch_s

    @computed_field
    def epoch_s(self) -> float:
        """Seconds of an epoch: its steps, by all that were measured, and its validation."""
        return self.epoch_steps * self.measured.average_batch_s + self.validation_s


def profile_local(
    job: TrainJob, settings: Settings, *, steps: int, warm_up: int, sink: Sink | None = None
) -> ProfileReport:
    """Time `steps` training steps of a job after `warm_up` others, in a new process.

    The plan is the job's own, or, for a job that asks for calibration itself, the one that calibration chooses.

    Raises:
        PreflightError: the spec does not suit the data set, or the steps failed.
    """
    with local_context(job, settings, sink=sink) as context:
        job = pin_dataset(context, job)
        spec, resources = job.spec(), detect_resources(context)
        store = prepare_dataset(context, job)
        plan = job.plan.complete(spec, resources.cores)
        if job.calibrate and "calibrate" in job.model_fields_set:
            plan = select_plan(context, job, spec, resources, store).plan
        request = ProfileRequest(spec=spec, plan=plan, store=store.path, steps=steps, warm_up=warm_up)
        done = run_job_child(
            context, "profile", profiling_child.MODULE, profiling_child.REQUEST.dump_json(request),
            environment_for(plan, context.environment),
        )  # fmt: skip
        return ProfileReport.model_validate(
            {**done, "dataset": spec.dataset, "model": spec.model, "batch_size": spec.batch_size, "plan": plan}
        )
