"""Whether a job is let in: its function, its arguments, its signature, its fields, and this worker's limits."""

from pydantic import JsonValue

from training.errors import InvalidConfig
from training.spec import TrainSpec
from worker.safe_job import SafeJob, require_allowed
from worker.settings import Settings
from worker.signing import verify
from worker.wire import FUNCTION, TrainJob, parse_job


def admit(job: SafeJob, settings: Settings) -> TrainJob:
    """Return the request that a job from the queue carries.

    Raises:
        InvalidConfig: it is refused; the message says what to change.
    """
    require_allowed(job.func_name)
    request = _request(job)
    _check_signature(request, job.kwargs.get("signature"), settings)
    admitted = parse_job(request)
    _within_limits(admitted, settings)
    return admitted


def within_samples(spec: TrainSpec, train_samples: int, settings: Settings) -> None:
    """Check what a job asks for once the number of training samples in an epoch is known.

    Raises:
        InvalidConfig: together its epochs have more than this worker trains on.
    """
    most, asked = settings.max_samples, spec.epochs * train_samples
    if most is not None and asked > most:
        raise InvalidConfig(
            f"epochs is {spec.epochs}, which makes {asked} samples of {train_samples} an epoch, but this worker trains "
            f"on at most {most} (PREFLIGHT_MAX_SAMPLES); ask for fewer epochs or a smaller data set",
            field="epochs",
        )


def _request(job: SafeJob) -> dict[str, JsonValue]:
    """Return the one argument that a call has."""
    if len(job.args) != 1 or set(job.kwargs) - {"signature"}:
        raise InvalidConfig(
            f"{FUNCTION} got {len(job.args)} positional and {len(job.kwargs)} keyword arguments, but takes one "
            "positional argument, and no keyword but signature; send the TrainJob object"
        )
    request: JsonValue = job.args[0]
    if not isinstance(request, dict):
        raise InvalidConfig(f"the job is a {type(request).__name__}, but must be an object; send a TrainJob")
    return request


def _check_signature(request: dict[str, JsonValue], signature: JsonValue, settings: Settings) -> None:
    if settings.signing_key is None:
        return
    if not isinstance(signature, str):
        raise InvalidConfig(
            "the job has no signature, but this worker asks for one; enqueue it with the signing key", field="signature"
        )
    if not verify(request, signature, settings.signing_key.get_secret_value()):
        raise InvalidConfig(
            "the signature is not that of this job under this worker's key; sign the job as it is sent, with the same "
            "key as the worker's",
            field="signature",
        )


def _within_limits(job: TrainJob, settings: Settings) -> None:
    spec, largest = job.spec(), settings.max_batch_size
    for field, value, most, variable in (
        ("epochs", spec.epochs, settings.max_epochs, "PREFLIGHT_MAX_EPOCHS"),
        ("batch_size", spec.batch_size, largest, "PREFLIGHT_MAX_BATCH_SIZE"),
        ("plan.micro_batch", job.plan.micro_batch, largest, "PREFLIGHT_MAX_BATCH_SIZE"),
        ("plan.eval_batch", job.plan.eval_batch, largest, "PREFLIGHT_MAX_BATCH_SIZE"),
    ):
        if value is not None and most is not None and value > most:
            raise InvalidConfig(
                f"{field} is {value}, but this worker takes at most {most} ({variable}); ask for less", field=field
            )
