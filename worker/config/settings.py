"""Settings of the service, those of a client included; children get their environment here."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, SecretStr, field_validator

from calibration.space import DEFAULT_SECONDS
from preflight.cli.settings import ClientSettings, check_key_length, expand, load_as
from preflight.config.directories import explain_homeless
from preflight.config.values import clean, require_plain, require_url
from preflight.wire import EVENTS_KEPT, STATE_TTL
from training.system.requirements import explain_thread_variables, without_thread_variables

SECRET_PREFIXES: Final = ("REDIS_", "PREFLIGHT_", "RAILWAY_")
"""Prefixes of the variables that child processes do not get."""
STORE_PREFIXES: Final = ("AWS_", "FSSPEC_", "MLFLOW_")
"""Prefixes of the variables that the clients of stores and of MLflow read; white space around them does not count."""
DEFAULT_PORT: Final = 8000
"""Port of the web service where the platform assigns none."""
PLATFORM: Final = (
    "port", "railway_service", "railway_deployment", "railway_replica", "railway_commit", "railway_volume",
)  # fmt: skip
"""Settings from the platform's own variables."""

REMOVED: Final[Mapping[str, str]] = {
    "PREFLIGHT_IDLE_CALIBRATION": "a worker does not calibrate while the queue is empty",
}
"""Environment variables of settings that earlier versions had, and what holds now."""


class Settings(ClientSettings):
    """Settings of a service or a command of the worker; `load` reads them from environment variables."""

    VARIABLES: ClassVar[Mapping[str, Sequence[str]]] = {
        **ClientSettings.VARIABLES,
        "port": ("PORT",),
        "railway_service": ("RAILWAY_SERVICE_NAME",),
        "railway_deployment": ("RAILWAY_DEPLOYMENT_ID",),
        "railway_replica": ("RAILWAY_REPLICA_ID",),
        "railway_commit": ("RAILWAY_GIT_COMMIT_SHA",),
        "railway_volume": ("RAILWAY_VOLUME_MOUNT_PATH",),
    }
    SECRETS: ClassVar[Sequence[str]] = (*ClientSettings.SECRETS, "api_token")
    URLS: ClassVar[Sequence[str]] = ("artifact_url", "mlflow_uri", "dataset_url")

    dependent_queues: Annotated[str, Field(pattern=r"^([A-Za-z0-9._:-]{1,64}(,[A-Za-z0-9._:-]{1,64}){0,31})?$")] = ""
    """Other RQ queues, separated by commas: jobs on them that depend on one of this queue are enqueued when it ends."""
    data_dir: Path = Path("~/.local/share/preflight/data")
    """Directory of the data sets; downloads go there."""
    artifact_dir: Path = Path("~/.local/share/preflight/artifacts")
    """Directory of the trained models, with a subdirectory for each job."""
    cache_dir: Path = Path("~/.cache/preflight")
    """Directory of prepared data sets and measured plans; can be deleted at any time."""
    state_dir: Path = Path("~/.local/share/preflight/state")
    """Directory of unfinished jobs: checkpoints and unpublished events. Put it on a volume."""
    checkpoint_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Seconds between two checkpoints: the most training that a kill can lose. Unset: 15, or up to 60 for a model whose
    checkpoints would otherwise cost more than 1 % of its training."""
    signature_seconds: Annotated[int, Field(ge=60, le=365 * 86_400)] = STATE_TTL
    """Seconds after its signing within which a job must first be taken, time in the queue included."""
    api_token: SecretStr | None = None
    """Bearer token of requests to `preflight serve`; required where other machines can reach it."""
    api_token_file: Path | None = None
    """File with the token."""
    web_readonly: Literal["on", "off"] = "off"
    """`on`: `preflight serve` shows jobs only; it refuses to start, retry or cancel one."""
    web_prefix: Annotated[str, Field(max_length=256, pattern=r"^(/[A-Za-z0-9._~-]+)*/?$")] = ""
    """Path below which a reverse proxy serves page and API, as `/preflight`: needed where the proxy leaves it in the
    requests; `location` and `href` of answers begin with it."""
    web_keep_alive: Annotated[float, Field(ge=1, le=3600)] = 75.0
    """Seconds for which `preflight serve` keeps an idle connection: more than the load balancer in front of it does."""
    processes: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """`auto`: `preflight worker` runs one job on all cores, and several at a time where that does more
    (`PREFLIGHT_PACKING`). A number: so many processes, each with an equal, fixed share of the cores and the memory."""
    packing: Literal["throughput", "latency", "off"] = "throughput"
    """When jobs run at the same time, with `PREFLIGHT_PROCESSES=auto`. `throughput`: where all together do more than
    one after the other. `latency`: only where none ends more than a tenth later for it. `off`: never."""
    max_jobs: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Maximum jobs that run at a time on this host, with `PREFLIGHT_PROCESSES=auto`. Unset: as many as cores and memory
    allow."""
    group: Literal["on", "off"] = "off"
    """`on`: this worker trains jobs with `workers` together with others of its queue, as leader or as member: only on a
    private network, whose machines can all be trusted."""
    advertise_host: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:%-]{1,253}$")] | None = None
    """Private address of this worker, IPv4 or IPv6, or a name for it, where it is not found. Other workers of a group
    connect to it."""
    gather_seconds: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that a job waits for other workers to train it."""
    max_epochs: Annotated[int, Field(ge=1)] | None = None
    """Maximum epochs of a job."""
    max_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Maximum batch of a job, for an optimizer step or an evaluation."""
    max_parameters: Annotated[int, Field(ge=1)] | None = None
    """Maximum parameters of a model."""
    max_samples: Annotated[int, Field(ge=1)] | None = None
    """Maximum samples of a job: its epochs times the training samples of its data set."""
    max_calibration_seconds: Annotated[float, Field(gt=0)] | None = None
    """Maximum `calibration_seconds` of a job."""
    max_loader_workers: Annotated[int, Field(ge=0)] | None = None
    """Maximum loader processes of a job's own plan."""
    max_threads: Annotated[int, Field(ge=1)] | None = None
    """Maximum threads of a job's own plan, for `threads` and `interop` each."""
    max_job_timeout: Annotated[int, Field(ge=1)] | None = None
    """Maximum `job_timeout` of a job, seconds; then -1, no limit, is refused."""
    max_repeats: Annotated[int, Field(ge=0)] = 1000
    """Maximum runs that one job may ask for by RQ's `Repeat`, after its first."""
    standby: Literal["auto", "off"] = "auto"
    """`auto`: a worker keeps a process with torch imported while jobs come, where it has at least 480 MiB of memory; it
    takes some 200 to 300 MiB, which the children of a job share. `off`: each child imports torch itself."""
    report: Literal["auto", "off"] = "auto"
    """`auto`: each training writes `report.html` next to its model, with the extra `report`; `off`: none."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`auto`: key=value at a terminal, one-line JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of the log lines."""
    calibration_seconds: Annotated[float, Field(gt=0, le=3600)] = DEFAULT_SECONDS
    """Time budget of a calibration without the import of torch, seconds; a short training gets less, and a job may set
    its own."""
    state_ttl: Annotated[int, Field(ge=60, le=365 * 86_400)] = STATE_TTL
    """Time to live of a job's events, state and result in Redis after its last update, seconds."""
    events_kept: Annotated[int, Field(ge=100, le=1_000_000)] = EVENTS_KEPT
    """Length of a job's event stream, roughly; the newest records are kept."""
    redis_wait: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Seconds that a starting worker waits for Redis."""
    artifact_url: Annotated[str, Field(max_length=1_000)] | None = None
    """URL that finished models are uploaded to, each to `<url>/<job id>/`: s3://bucket/prefix or another of fsspec."""
    dataset_url: Annotated[str, Field(max_length=1_000)] | None = None
    """URL of the object store of imported data: `preflight data add` uploads to it, workers fetch from it by hash."""
    dataset_cache_gb: Annotated[float, Field(gt=0, le=100_000)] = 50.0
    """GiB of imported data kept here with `PREFLIGHT_DATASET_URL`; the least recently used are removed."""
    upload_dir: Path | None = None
    """Folder of what `preflight serve` was sent to be imported, which workers read: a volume of both, and of nothing
    else. Unset: in `PREFLIGHT_DATASET_URL`, else the folder `uploads` of `PREFLIGHT_DATA_DIR`."""
    max_upload_gb: Annotated[float, Field(gt=0, le=1_000)] = 4.0
    """Maximum GiB of one upload."""
    imports_gb: Annotated[float, Field(gt=0, le=1_000_000)] = 50.0
    """Maximum GiB of all uploads and imported data together: beyond, `preflight serve` takes no further upload."""
    data_sources: Annotated[str, Field(max_length=10_000)] = ""
    """Prefixes of URLs, separated by commas, below which `preflight data add` may read: s3://bucket/, https://host/path/."""
    mlflow_uri: Annotated[str, Field(max_length=1_000)] | None = None
    """MLflow tracking server; each finished job is logged as a run."""
    mlflow_experiment: Annotated[str, Field(min_length=1, max_length=256)] = "preflight"
    """MLflow experiment of these runs; created where it is missing."""
    export_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Time limit of each of these two exports per job, retries included, seconds."""
    tensorboard_dir: Path | None = None
    """Directory of TensorBoard event files, with a subdirectory for each job."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Port assigned by the platform (`PORT`)."""
    railway_service: str | None = None
    """Railway's name of this service; logged at start."""
    railway_deployment: str | None = None
    """Railway's id of this deployment; logged at start."""
    railway_replica: str | None = None
    """Railway's id of this replica; logged at start."""
    railway_commit: str | None = None
    """Commit that Railway deployed; logged at start."""
    railway_volume: Path | None = None
    """Mount path of Railway's volume; the four directories go there unless they are set."""

    @field_validator(
        "data_dir",
        "artifact_dir",
        "cache_dir",
        "state_dir",
        "tensorboard_dir",
        "api_token_file",
        "upload_dir",
        mode="before",
    )
    @classmethod
    def _expand_more(cls, value: str | Path | None) -> Path | None:
        return expand(value)

    @field_validator("artifact_url", "mlflow_uri", "dataset_url")
    @classmethod
    def _check_url_without_query(cls, value: str | None) -> str | None:
        return None if value is None else require_url(value)

    @field_validator("api_token")
    @classmethod
    def _check_token(cls, value: SecretStr | None) -> SecretStr | None:
        return check_key_length(value)

    @property
    def shares(self) -> int:
        """Fixed shares among which the container is divided."""
        return 1 if self.processes == "auto" else self.processes

    @property
    def packs(self) -> bool:
        """Whether jobs may run at the same time, with shares that change."""
        return self.packing != "off" and self.shares == 1

    def require_dataset(self, name: str) -> None:
        """Raise `InvalidConfig` for a data set that is neither registered, nor imported, nor perhaps in the store."""
        from training.catalog.names import require_dataset

        require_dataset(name, self.data_dir, elsewhere=self.dataset_url is not None)

    def platform(self) -> dict[str, str | int]:
        """Return the platform's settings, for the log."""
        return self.model_dump(include={*PLATFORM} - {"railway_volume"}, exclude_none=True)


def load(**overrides: object) -> Settings:
    """Return the settings from environment variables, with `overrides` before them.

    Raises:
        InvalidConfig: a variable has a value outside its bounds, or a file with a secret cannot be used; the message
            names it.
    """
    found = load_as(Settings, overrides)
    if any(url is not None for url in (found.artifact_url, found.mlflow_uri, found.dataset_url)):
        for name in (name for name in os.environ if name.startswith(STORE_PREFIXES)):
            require_plain(clean(os.environ[name]), name, secret=True)
    notes = (*found.notes, explain_homeless(), explain_thread_variables(os.environ), *_explain_removed())
    found._notes = tuple(note for note in notes if note)
    return _on_volume(found)


def _explain_removed() -> Sequence[str]:
    """Return a sentence for each variable that is set and has no effect any more."""
    return [
        f"{name} has no effect any more and can be left out: {now}"
        for name, now in REMOVED.items()
        if clean(os.environ.get(name, ""))
    ]


def _on_volume(settings: Settings) -> Settings:
    """Put unset directories on the platform's volume, where there is one."""
    if settings.railway_volume is None:
        return settings
    names = ("data_dir", "artifact_dir", "cache_dir", "state_dir")
    unset = [name for name in names if name not in settings.model_fields_set]
    paths = {name: settings.railway_volume / name.removesuffix("_dir") for name in unset}
    return settings.model_copy(update=paths)


def child_environment() -> Mapping[str, str]:
    """Return this process's environment without the service's variables, and without those that plans decide on."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(SECRET_PREFIXES)}
    return without_thread_variables(plain)


def job_environment(settings: Settings) -> Mapping[str, str]:
    """Return the environment of the children of a job, the same for each, so that one fork server serves them."""
    # matplotlib searches all fonts once and keeps the list there.
    return {**child_environment(), "MPLCONFIGDIR": str(settings.cache_dir / "matplotlib")}


def export_environment(settings: Settings, *names: str) -> Mapping[str, str]:
    """Return `child_environment` with these settings: a URL with a password must not go into a file."""
    own = {f"PREFLIGHT_{name.upper()}": str(getattr(settings, name)) for name in names}
    theirs = {name: clean(value) for name, value in os.environ.items() if name.startswith(STORE_PREFIXES)}
    return {**child_environment(), **theirs, **own}


def service_environment(settings: Settings) -> Mapping[str, str]:
    """Return an environment in which `load` gives these settings, secrets included."""
    values = settings.model_dump(mode="json", exclude={*PLATFORM, "signing_key", "api_token"})
    values["signing_key"] = settings.signing_key and settings.signing_key.get_secret_value()
    values["api_token"] = settings.api_token and settings.api_token.get_secret_value()
    # An empty variable counts as unset and hides the one of this process.
    own = {f"PREFLIGHT_{name.upper()}": "" if value is None else str(value) for name, value in values.items()}
    return {**os.environ, **own, "REDIS_PASSWORD_FILE": ""}  # it has been read
