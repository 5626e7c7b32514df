"""The settings of the service; the only place that reads environment variables."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from calibration.search.mutations import DEFAULT_SECONDS
from training.errors import InvalidConfig
from worker.wire import EVENTS_KEPT, JOB_TIMEOUT, STATE_TTL
from worker.wire.validation_errors import explain

SECRET_PREFIXES: Final = ("REDIS_", "PREFLIGHT_", "RAILWAY_")
"""Variables that a training child has no business to see."""
DEFAULT_PORT: Final = 8000
"""Where the web service listens when the platform assigns no port."""
SHORTEST_KEY: Final = 16
"""Characters of a signing key or a token."""
TOO_SHORT: Final = f"must have at least {SHORTEST_KEY} characters"
LARGEST_SECRET: Final = 4096
"""Bytes of a file that holds a password, a key or a token."""
STARS: Final = "***"
"""What is shown for a secret."""
PASSWORD: Final = re.compile(r"(://[^/@:\s]*:)[^/\s]*@|([?&]password=)[^&\s]*")
"""A password in a URL, in any text."""
ADDRESS: Final = re.compile(r"([a-z]*://)?[A-Za-z0-9.-]*(:\d+)?(/\d*)?")
"""A URL without a user, or what was meant as one."""
PLACE: Final = re.compile(r"[a-z][a-z0-9+.-]*:/[^\s?#]+")
"""A URL that names a place and nothing else: what stands behind `?` is often a key."""

PLATFORM: Final = (
    "port", "railway_service", "railway_deployment", "railway_replica", "railway_commit", "railway_volume",
)  # fmt: skip
"""Settings that come from the platform, under its own names."""


SECRET_FILES: Final = ("redis_password_file", "signing_key_file", "api_token_file")
"""Settings that name a file, until it has been read."""


class Settings(BaseSettings):
    """Every field can be set by the environment variable of its name, in upper case after `PREFLIGHT_`."""

    model_config = SettingsConfigDict(
        env_prefix="PREFLIGHT_", frozen=True, extra="ignore", env_ignore_empty=True, populate_by_name=True
    )

    redis_url: str = Field(
        default="redis://localhost:6379/0", validation_alias=AliasChoices("PREFLIGHT_REDIS_URL", "REDIS_URL")
    )
    """Where Redis is: redis://, rediss:// or unix:// (`REDIS_URL`, or `PREFLIGHT_REDIS_URL` before it)."""
    redis_password_file: Path | None = Field(default=None, validation_alias="REDIS_PASSWORD_FILE")
    """File with the password of the user that the URL names (`REDIS_PASSWORD_FILE`); then the URL has none."""
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "preflight"
    """Name of the RQ queue."""
    data_dir: Path = Path("~/.local/share/preflight/data")
    """Where data sets lie, or are downloaded to."""
    artifact_dir: Path = Path("~/.local/share/preflight/artifacts")
    """Where trained models go, a directory for each job."""
    cache_dir: Path = Path("~/.cache/preflight")
    """Prepared data sets and measured plans; can be deleted at any time."""
    state_dir: Path = Path("~/.local/share/preflight/state")
    """Where unfinished jobs lie: checkpoints and events that Redis has not taken yet. Keep it on a volume."""
    outbox_dir: Path = Path("~/.local/share/preflight/outbox")
    """Where a producer keeps the jobs that it enqueued with `--ensure`."""
    checkpoint_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Seconds between two checkpoints: the most training that a kill can cost. Unset: 15, or up to 60 for a model whose
    checkpoints would otherwise cost more than 1 % of its training."""
    signing_key: SecretStr | None = None
    """Secret shared with those who may enqueue; where it is set, a job without its signature is refused."""
    signing_key_file: Path | None = None
    """File with the signing key, in its place."""
    signature_seconds: Annotated[int, Field(ge=60, le=365 * 86_400)] = STATE_TTL
    """Seconds after its signing within which a signed job must be taken for the first time; waiting in the queue
    counts."""
    api_token: SecretStr | None = None
    """What requests to `preflight serve` must carry as `Authorization: Bearer`; needed where others than this machine
    can reach it."""
    api_token_file: Path | None = None
    """File with the token, in its place."""
    max_epochs: Annotated[int, Field(ge=1)] | None = None
    """Most epochs of a job."""
    max_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Largest batch of a job, whether for an optimizer step or an evaluation."""
    max_parameters: Annotated[int, Field(ge=1)] | None = None
    """Most parameters of a model."""
    max_samples: Annotated[int, Field(ge=1)] | None = None
    """Most samples that a job trains on: its epochs times the training samples of its data set."""
    max_calibration_seconds: Annotated[float, Field(gt=0)] | None = None
    """Longest time that a job may ask to spend measuring plans."""
    max_loader_workers: Annotated[int, Field(ge=0)] | None = None
    """Most loader processes of a job's own plan."""
    max_threads: Annotated[int, Field(ge=1)] | None = None
    """Most threads of a job's own plan, `threads` and `interop` each."""
    max_job_timeout: Annotated[int, Field(ge=1)] | None = None
    """Longest `job_timeout` of a job, seconds; -1, never, is above each."""
    report: Literal["auto", "off"] = "auto"
    """`auto`: each training leaves a `report.html` beside its model, which takes the extra `report`; `off`: none."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`auto`: key=value at a terminal, one-line JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of the log lines that are written."""
    calibration_seconds: Annotated[float, Field(gt=0, le=3600)] = DEFAULT_SECONDS
    """Longest time spent measuring plans, the import of torch apart; a short training gets less, and a job may set its
    own."""
    job_timeout: Annotated[int, Field(ge=1, le=30 * 86_400)] = JOB_TIMEOUT
    """Seconds after which a job that the client enqueued is given up."""
    state_ttl: Annotated[int, Field(ge=60, le=365 * 86_400)] = STATE_TTL
    """Seconds for which events, state and result of a job are kept in Redis after its last sign of life."""
    events_kept: Annotated[int, Field(ge=100, le=1_000_000)] = EVENTS_KEPT
    """Newest records kept in a job's event stream."""
    redis_wait: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Seconds for which a starting worker waits for Redis before it gives up."""
    artifact_url: Annotated[str, Field(max_length=1_000)] | None = None
    """Where finished models also go, each to `<url>/<job id>/`: s3://bucket/prefix, or what else fsspec knows."""
    mlflow_uri: Annotated[str, Field(max_length=1_000)] | None = None
    """MLflow's tracking server, where each finished job also becomes a run."""
    mlflow_experiment: Annotated[str, Field(min_length=1, max_length=256)] = "preflight"
    """Name of the MLflow experiment of those runs; made where it is missing."""
    export_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Longest time that each of the two may take of a job, tries that failed included."""
    tensorboard_dir: Path | None = None
    """Where jobs are drawn for TensorBoard while they run, a directory for each."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = Field(default=None, validation_alias="PORT")
    """Port that the platform assigned (`PORT`)."""
    railway_service: str | None = Field(default=None, validation_alias="RAILWAY_SERVICE_NAME")
    """Railway's name of this service; logged at start."""
    railway_deployment: str | None = Field(default=None, validation_alias="RAILWAY_DEPLOYMENT_ID")
    """Railway's id of this deployment; logged at start."""
    railway_replica: str | None = Field(default=None, validation_alias="RAILWAY_REPLICA_ID")
    """Railway's id of this replica; logged at start."""
    railway_commit: str | None = Field(default=None, validation_alias="RAILWAY_GIT_COMMIT_SHA")
    """Commit that Railway deployed; logged at start."""
    railway_volume: Path | None = Field(default=None, validation_alias="RAILWAY_VOLUME_MOUNT_PATH")
    """Where Railway mounted the volume; the four directories go beneath it unless they are set."""

    @field_validator(
        "data_dir", "artifact_dir", "cache_dir", "state_dir", "outbox_dir", "tensorboard_dir", *SECRET_FILES
    )
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value and value.expanduser().absolute()

    @field_validator("redis_url")
    @classmethod
    def _scheme(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        try:
            urlsplit(value).port  # noqa: B018 - it refuses what is no number, and would quote a part of a password
        except ValueError:
            raise ValueError(
                "is no URL; write redis://[user:password@]host[:port][/db], / # ? @ as %2F %23 %3F %40"
            ) from None
        return value

    @field_validator("artifact_url", "mlflow_uri")
    @classmethod
    def _names_a_place(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            urlsplit(value).port  # noqa: B018 - as for Redis
            plain = PLACE.fullmatch(value) is not None
        except ValueError:
            plain = False
        if not plain:
            raise ValueError(
                "must be a URL such as s3://bucket/prefix or https://host:port/path, without a query; "
                "credentials go into the variables that its service reads"
            )
        return value

    @field_validator("signing_key", "api_token")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < SHORTEST_KEY:
            raise ValueError(TOO_SHORT)
        return value

    @property
    def secrets(self) -> Sequence[str]:
        """What no log and no message may show."""
        keys = [key.get_secret_value() for key in (self.signing_key, self.api_token) if key is not None]
        urls = (self.redis_url, self.artifact_url, self.mlflow_uri)
        return (*(password for url in urls if url for password in passwords_in(url)), *keys)

    @property
    def safe_redis_url(self) -> str:
        """The Redis URL without its password."""
        return without_password(self.redis_url)

    def scrubbed(self, text: str) -> str:
        """Return `text` without any secret of these settings, wherever it came from."""
        return scrubbed(text, spellings(self.secrets))

    def platform(self) -> dict[str, str | int]:
        """Return what the platform said of itself, for the log."""
        said = {
            "port": self.port,
            "railway_service": self.railway_service,
            "railway_deployment": self.railway_deployment,
            "railway_replica": self.railway_replica,
            "railway_commit": self.railway_commit,
        }
        return {name: value for name, value in said.items() if value is not None}


def passwords_in(url: str) -> Sequence[str]:
    """Return the passwords that a URL carries: before its host, or as a parameter."""
    parts = urlsplit(url)
    found = (parts.password or "", *(value for name, value in parse_qsl(parts.query) if name == "password"))
    return [form for password in found for form in (password, unquote(password)) if form]


def spellings(secrets: Sequence[str]) -> Sequence[str]:
    """Return `secrets` in every form that they take in URLs, in JSON and in Python's quotes, longest first."""
    forms = {
        form
        for secret in secrets
        for form in (
            secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1],
            ascii(secret)[1:-1], repr(secret.encode())[2:-1],
        )
    }  # fmt: skip
    return sorted(forms - {""}, key=len, reverse=True)


def scrubbed(text: str, forms: Sequence[str]) -> str:
    """Return `text` without the secrets in `forms` and without the password of any URL."""
    for form in forms:
        text = text.replace(form, STARS)
    return without_password(text)


def without_password(text: str) -> str:
    """Return `text` with the password of every URL in it replaced by `***`."""
    return PASSWORD.sub(_stars, text)


def _stars(match: re.Match[str]) -> str:
    return f"{match[1]}{STARS}@" if match[1] else f"{match[2]}{STARS}"


def load(**overrides: object) -> Settings:
    """Return the settings from environment variables, with `overrides` before them.

    Raises:
        InvalidConfig: a variable has a value outside its bounds, or a file with a secret cannot be used; the message
            names it.
    """
    try:
        found = Settings.model_validate(overrides) if overrides else Settings()
    except ValidationError as error:
        where = str(error.errors()[0]["loc"]).lower()
        secret = "signing_key" in where or "api_token" in where
        url = any(name in where for name in ("redis_url", "artifact_url", "mlflow_uri"))
        show = _hidden if secret else _address if url else _without_password
        raise explain(error, Settings.model_json_schema(), name=_variable, show=show) from None
    return _beneath_volume(_with_secrets(found))


def _hidden(value: object) -> object:  # noqa: ARG001 - no part of it is shown
    return STARS


def _without_password(value: object) -> object:
    return without_password(value) if isinstance(value, str) else value


def _address(value: object) -> object:
    """Return a URL that is refused; but where it may hold a password, only that there is one."""
    return value if isinstance(value, str) and ADDRESS.fullmatch(value) else STARS


def _variable(field: str) -> str:
    """Return the environment variable that sets `field`; those with names of their own arrive as they are."""
    return field if field.isupper() else f"PREFLIGHT_{field.upper()}"


def _beneath_volume(settings: Settings) -> Settings:
    """Put the directories that were not set on the platform's volume, where there is one."""
    if settings.railway_volume is None:
        return settings
    names = ("data_dir", "artifact_dir", "cache_dir", "state_dir")
    unset = [name for name in names if name not in settings.model_fields_set]
    places = {name: settings.railway_volume / name.removesuffix("_dir") for name in unset}
    return settings.model_copy(update=places)


def _with_secrets(settings: Settings) -> Settings:
    """Read the secrets that lie in files, as Docker and Kubernetes mount them."""
    found: dict[str, str | SecretStr | None] = dict.fromkeys(SECRET_FILES)
    if settings.redis_password_file is not None:
        parts = urlsplit(settings.redis_url)
        if passwords_in(settings.redis_url):
            raise InvalidConfig(
                "REDIS_URL has a password and REDIS_PASSWORD_FILE is set; leave one of them out",
                field="redis_password_file",
            )
        password = quote(_secret_in(settings.redis_password_file, "REDIS_PASSWORD_FILE"), safe="")
        host = parts.netloc.rpartition("@")[2]
        found["redis_url"] = parts._replace(netloc=f"{parts.username or ''}:{password}@{host}").geturl()
    for name, key, file in (
        ("signing_key", settings.signing_key, settings.signing_key_file),
        ("api_token", settings.api_token, settings.api_token_file),
    ):
        if file is None:
            continue
        variable = f"PREFLIGHT_{name.upper()}"
        if key is not None:
            raise InvalidConfig(f"{variable} and {variable}_FILE are both set; leave one of them out", field=name)
        secret = _secret_in(file, f"{variable}_FILE")
        if len(secret) < SHORTEST_KEY:
            raise InvalidConfig(f"{variable}_FILE names {file}: what it holds {TOO_SHORT}", field=name)
        found[name] = SecretStr(secret)
    return settings.model_copy(update=found)


def _secret_in(file: Path, variable: str) -> str:
    """Return the one line that `file` holds; raises `InvalidConfig`."""
    try:
        with file.open("rb") as opened:
            secret = opened.read(LARGEST_SECRET + 1).decode().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidConfig(
            f"{variable} names {file}, which cannot be read ({why}); correct it", field=variable
        ) from None
    if not secret or len(secret) > LARGEST_SECRET or not secret.isprintable():
        raise InvalidConfig(
            f"{variable} names {file}, which must hold one line, at most {LARGEST_SECRET} bytes; write it there",
            field=variable,
        )
    return secret


def child_environment() -> Mapping[str, str]:
    """Return this process's environment without what a training child has no business to see."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SECRET_PREFIXES)}


def export_environment(settings: Settings, *names: str) -> Mapping[str, str]:
    """Return the environment of a child that also sees these settings: a URL with a password goes into no file."""
    own = {f"PREFLIGHT_{name.upper()}": str(getattr(settings, name)) for name in names}
    return {**child_environment(), **own}


def service_environment(settings: Settings) -> Mapping[str, str]:
    """Return an environment in which a `preflight` command finds these settings again, secrets included."""
    values = settings.model_dump(mode="json", exclude={*PLATFORM, "signing_key", "api_token"})
    values["signing_key"] = settings.signing_key and settings.signing_key.get_secret_value()
    values["api_token"] = settings.api_token and settings.api_token.get_secret_value()
    # An empty variable is one that is not set; it hides what this process was started with.
    own = {f"PREFLIGHT_{name.upper()}": "" if value is None else str(value) for name, value in values.items()}
    return {**os.environ, **own, "REDIS_PASSWORD_FILE": ""}  # it has been read
