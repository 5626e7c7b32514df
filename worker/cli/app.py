"""The command line. Each command imports what it needs when it runs, so that `--help` is immediate."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, ParamSpec, TypeVar, get_args

import click

from worker.ops.signals import hear_hangup

if TYPE_CHECKING:
    from pydantic import JsonValue
    from redis import Redis
    from rich.console import Console

    from worker.cli.completion import Kind
    from worker.client import Client
    from worker.config.settings import Settings
    from worker.jobs.local.training import Calibrated
    from worker.wire import AnyEvent, Status, TrainJob

BAD_INPUT: Final = 2
FAILURE: Final = 1
INTERRUPTED: Final = 130
"""128 + SIGINT, the shell's convention."""
MOST_LISTED: Final = 10_000
"""Jobs in one list."""
LARGEST_FILE: Final = 256 * 1024
"""Characters of `--file`; a job has fewer, but white space does not count there."""
LONGEST_SHOWN: Final = 60
"""Characters of a wrong value that an error repeats."""
LONGEST_NAME: Final = 256
"""Characters of a file's name that an error repeats."""
DEEPEST_FIELD: Final = 8
"""Levels above a field that `--set` names; a job has one."""

P = ParamSpec("P")
T = TypeVar("T")


class Cli(click.Group):
    """Turns every failure into one sentence on stderr and the right exit code."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; with `--debug`, let a failure through as it is."""
        # The first process of a container has no default for SIGTERM: without a handler it would go on.
        signal.signal(signal.SIGTERM, _interrupt)
        hear_hangup(_interrupt)
        if ctx.params.get("debug"):
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise SystemExit(INTERRUPTED) from None
        except Exception as error:
            raise SystemExit(_say(error)) from error


def _interrupt(number: int, frame: object) -> None:  # noqa: ARG001 - the signal handler's signature
    raise KeyboardInterrupt


def _say(error: Exception) -> int:
    """Print one sentence about `error` and return the exit code."""
    from training.errors import InvalidConfig, PreflightError

    message = str(error) or type(error).__name__
    if _of_cluster(error):
        from worker.broker.retry import CLUSTERED

        message = f"Redis {CLUSTERED}"
    elif not isinstance(error, PreflightError):
        message = f"{type(error).__name__}: {message}; run again with --debug to see where"
    click.echo(f"preflight: {' '.join(message.split())}", err=True)
    return BAD_INPUT if isinstance(error, InvalidConfig) else FAILURE


def _of_cluster(error: Exception) -> bool:
    """Whether Redis said so because it is a cluster."""
    if "redis" not in sys.modules:  # whose import takes longer than most commands
        return False
    from redis.exceptions import AskError, ClusterCrossSlotError, ClusterError

    return isinstance(error, AskError | ClusterCrossSlotError | ClusterError)


@click.group(cls=Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="preflight-worker", prog_name="preflight")
def main(debug: bool) -> None:
    """Train digit recognizers from a Redis queue, as fast as the container allows."""


def _completing(kind: Kind) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes a word by names of some kind."""

    def complete(_context: click.Context, _parameter: click.Parameter, word: str) -> list[str]:
        from worker.cli.completion import names

        return names(kind, word)

    return complete


def _job_options(function: Callable[P, T]) -> Callable[P, T]:
    """Add the options that describe a job; values are checked by the wire format, so all errors sound alike."""
    options = [
        click.option("--file", "file", type=click.Path(dir_okay=False), help="Read the job from JSON; '-': stdin."),
        click.option("--dataset", shell_complete=_completing("datasets"),
                     help="mnist, fashion-mnist, kmnist, emnist, qmnist, digits or your own."),
        click.option("--recipe", shell_complete=_completing("recipes"),
                     help="fast, balanced or best: model, epochs and all else that decides it."),
        click.option("--model", shell_complete=_completing("models"), help="cnn, resnet18 or your own."),
        click.option("--epochs", help="Passes over the training samples."),
        click.option("--batch-size", help="Samples per optimizer step."),
        click.option("--learning-rate", help="Peak learning rate."),
        click.option("--seed", help="Seed of every random number."),
        click.option("--job-id", help="Idempotency key; made up when absent."),
        click.option("--deterministic", is_flag=True, default=None, help="Fix the plan; equal weights bit for bit."),
        click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE",
                     help="Any other field, e.g. augmentation.rotate_degrees=10 or plan.threads=1."),
        click.option("--calibrate/--no-calibrate", default=None, help="Whether to look for a faster plan."),
        click.option("--force-calibration", is_flag=True, default=None, help="Measure even when a plan is cached."),
        click.option("--calibration-samples", help="Steps measured of each plan."),
        click.option("--calibration-seconds", help="Longest time spent measuring plans."),
        click.option("--knobs", "calibration_knobs", metavar="KNOB,...",
                     help="Which knobs may be turned, e.g. threads,precision; all when absent."),
        click.option("--profile", is_flag=True, default=None, help="Measure what each phase of a step takes."),
        click.option("--trace", is_flag=True, default=None,
                     help="Leave a trace of a few steps beside the model, for Perfetto or Chrome."),
        click.option("--onnx", is_flag=True, default=None, help="Leave the model as ONNX, too."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def _job(options: dict[str, object]) -> TrainJob:
    """Return the job that the options describe; raises `InvalidConfig`."""
    from worker.wire import JOB_TYPE, parse_job

    fields = _fields(options)
    default: dict[str, JsonValue] = {} if options["file"] else {"type": JOB_TYPE, "dataset": "mnist"}
    return parse_job({**default, **fields})


def _fields(options: dict[str, object]) -> dict[str, JsonValue]:
    """Return the fields of a job that the options set; raises `InvalidConfig`."""
    file = options["file"]
    fields = _read_job(file) if isinstance(file, str) else {}
    for name, value in options.items():
        if name == "settings" and isinstance(value, tuple):
            for assignment in value:
                _assign(fields, str(assignment))
        elif name == "calibration_knobs" and isinstance(value, str):
            fields[name] = [knob.strip() for knob in value.split(",")]
        elif name != "file" and value is not None:
            fields[name] = _literal(value) if isinstance(value, str) else bool(value)
    return fields


def _read_job(file: str) -> dict[str, JsonValue]:
    from training.errors import InvalidConfig

    name = file if len(file) <= LONGEST_NAME else f"{file[:LONGEST_NAME]}..."
    try:
        with nullcontext(sys.stdin) if file == "-" else Path(file).open() as opened:
            text = opened.read(LARGEST_FILE + 1)
        payload = json.loads(text) if len(text) <= LARGEST_FILE else None
    except OSError as error:
        raise InvalidConfig(f"--file {name} cannot be read ({error.strerror}); check the path", field="file") from error
    except UnicodeError as error:
        raise InvalidConfig(f"--file {name} is no text in UTF-8; save it as such", field="file") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise InvalidConfig(f"--file {name} is not JSON ({error}); correct it", field="file") from error
    if len(text) > LARGEST_FILE:
        raise InvalidConfig(f"--file {name} has more than {LARGEST_FILE} characters; shorten it", field="file")
    if not isinstance(payload, dict):
        raise InvalidConfig(f"--file {name} holds no JSON object; it must be a TrainJob", field="file")
    return payload


def _cut(text: str) -> str:
    """Return what was typed, quoted, and cut where it is long."""
    return repr(text) if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]!r}..."


def _assign(payload: dict[str, JsonValue], assignment: str) -> None:
    """Put `a.b=value` into the payload."""
    from training.errors import InvalidConfig

    path, equals, value = assignment.partition("=")
    if not equals or not path:
        raise InvalidConfig(
            f"--set {_cut(assignment)} is not FIELD=VALUE; write e.g. --set label_smoothing=0.1", field="set"
        )
    *parents, last = path.split(".")
    if len(parents) > DEEPEST_FIELD:
        raise InvalidConfig(
            f"--set {_cut(assignment)} names a field {len(parents)} levels deep, but there are at most "
            f"{DEEPEST_FIELD}; correct its name",
            field="set",
        )
    for parent in parents:
        inner = payload.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise InvalidConfig(
                f"--set {_cut(assignment)}: {_cut(parent)} has no fields; name a top-level field", field="set"
            )
        payload = inner
    payload[last] = _literal(value)


def _literal(text: str) -> JsonValue:
    """Return a number, true, false, null or an object as what it is, anything else as a string."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, or nested too deep
        return text
    return value


def _settings() -> Settings:
    from worker.config.settings import load

    return load()


def _redis() -> Redis:
    from redis import Redis

    return Redis.from_url(_settings().redis_url)


def _client(settings: Settings) -> Client:
    from worker.client import Client

    key = None if settings.signing_key is None else settings.signing_key.get_secret_value()
    return Client(settings.redis_url, queue=settings.queue, signing_key=key, outbox=settings.outbox_dir)


def _log_to_stderr(settings: Settings) -> None:
    from worker.ops import logging as logs

    logs.configure(settings.log_format, settings.log_level, sys.stderr, settings.secrets)


@main.command()
@click.option("--burst", is_flag=True, help="Stop when the queue is empty.")
def worker(burst: bool) -> None:
    """Take jobs from the queue until told to stop."""
    settings = _settings()  # a mistake is told before the rest is imported
    from worker.queue.worker import serve

    serve(settings, burst=burst)


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; '::' is every one.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Where to listen; PORT, or 8000, when absent.")
def serve(host: str, port: int | None) -> None:
    """Serve the page, jobs, events and metrics over HTTP."""
    from training.system.requirements import require_packages
    from worker.ops import logging as logs

    settings = _settings()
    require_packages(("fastapi", "uvicorn", "prometheus_client"), "the web service needs it", "web")
    logs.configure(settings.log_format, settings.log_level, sys.stdout, settings.secrets)
    from worker.web.server import serve as serve_http

    serve_http(settings, host, port)


@main.command()
@_job_options
@click.option("--wait", is_flag=True, help="Watch it to its end; the exit code is the job's.")
@click.option("--ensure", is_flag=True, help="Keep it in the outbox until it has ended; see `resubmit`.")
def enqueue(wait: bool, ensure: bool, **options: object) -> None:
    """Put a job into the queue and print its id."""
    job, settings = _job(options), _settings()
    handle = _client(settings).enqueue(job, job_timeout=settings.job_timeout, ensure=ensure)
    click.echo(handle.job_id)
    if handle.waiting:
        click.echo("Redis does not answer; the job waits in the outbox for `preflight resubmit`", err=True)
        raise SystemExit(FAILURE)
    if not handle.created:
        click.echo(f"a job with the id {handle.job_id} was there already; nothing was enqueued", err=True)
    if wait:
        _watch(settings, handle.job_id)


@main.command()
def resubmit() -> None:
    """Enqueue again what the outbox holds and Redis knows nothing of; print the ids."""
    for job_id in _client(_settings()).resubmit():
        click.echo(job_id)


@main.command()
@click.argument("job_id", metavar="JOB", shell_complete=_completing("jobs"))
@click.option("--plain", is_flag=True, help="One line an event, as where standard output is no terminal.")
def watch(job_id: str, plain: bool) -> None:
    """Follow a job to its end; the exit code is the job's. Ctrl-C leaves it alone."""
    _watch(_settings(), job_id, plain=plain)


def _watch(settings: Settings, job_id: str, *, plain: bool = False) -> NoReturn:
    from worker.cli.formatting.choices import outcome
    from worker.wire import LAST

    client = _client(settings)
    _check_id(job_id)
    if client.status(job_id).status == "unknown":
        from training.errors import InvalidConfig

        raise InvalidConfig(f"job {job_id!r} is not known; `preflight jobs` lists those that are", field="job_id")
    console = None if plain else _terminal()
    try:
        last = _watch_live(client, job_id, console) if console else _watch_lines(client, job_id)
        if last is None or last.type not in LAST:
            click.echo(f"{job_id} is {client.status(job_id).status}, and has said no more", err=True)
    except KeyboardInterrupt:
        click.echo(f"{job_id} goes on; `preflight watch` shows it again, `preflight cancel` stops it", err=True)
        raise SystemExit(INTERRUPTED) from None
    raise SystemExit(outcome(last))


def _check_id(job_id: str) -> None:
    """Raise `InvalidConfig` for what cannot be a job's id, before Redis is asked for it."""
    from training.errors import InvalidConfig
    from worker.wire import is_job_id

    if not is_job_id(job_id):
        raise InvalidConfig(
            f"JOB is {_cut(job_id)}, but must be 1 to 64 letters, digits, '.', '_' or '-'; `preflight jobs` lists ids",
            field="job_id",
        )


def _terminal() -> Console | None:
    """Return the terminal, where there is one that can show a job live and the extra `cli` is installed."""
    if not sys.stdout.isatty():
        return None
    try:
        from worker.cli.watch.live import terminal
    except ImportError:
        return None
    return terminal()


def _watch_live(client: Client, job_id: str, console: Console) -> AnyEvent | None:
    from worker.cli.watch.live import watch

    return watch(client, job_id, console)


def _watch_lines(client: Client, job_id: str) -> AnyEvent | None:
    """Print a job's events as they come, and return the last one."""
    from worker.cli.formatting.choices import describe
    from worker.client import Silence

    last, away = None, False
    for said in client.follow(job_id):
        if not isinstance(said, Silence):
            last, line = said, describe(said)
            if line:
                click.echo(line)
        elif said.trouble is None:
            away = False
        elif not away:
            away = True
            click.echo(f"waiting for Redis, which {said.trouble}", err=True)
    return last


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--status", "statuses", metavar="STATUS,...", shell_complete=_completing("statuses"),
              help="Only these: queued, running, finished, failed, cancelled.")  # fmt: skip
@click.option("--limit", metavar="N", help="Only the newest N; 100 when absent.")
def jobs(as_json: bool, statuses: str | None, limit: str | None) -> None:
    """List the jobs that Redis still knows, newest last, below them those that run."""
    from worker.cli.formatting.choices import table

    wanted, most = _statuses(statuses), _most(limit)
    states = _client(_settings()).jobs(limit=most, statuses=wanted)
    if as_json:
        for state in reversed(states):
            click.echo(state.model_dump_json(exclude_none=True))
    else:
        click.echo(table(states[::-1]))
    if limit is None and len(states) == most:
        click.echo(f"there may be more than these {most}; --limit N lists more", err=True)


def _statuses(text: str | None) -> frozenset[Status]:
    """Return the statuses in a list of them; none where there is no list. Raises `InvalidConfig`."""
    from training.config.registry import nearest
    from training.errors import InvalidConfig
    from worker.wire import Status

    known: dict[str, Status] = {status: status for status in get_args(Status)}
    named = frozenset() if text is None else frozenset(part.strip() for part in text.split(","))
    for name in sorted(named.difference(known)):
        raise InvalidConfig(
            f"--status {_cut(name)} is not known{nearest(name, [*known])}; use some of {', '.join(known)}",
            field="status",
        )
    return frozenset(known[name] for name in named)


def _most(text: str | None) -> int:
    """Return how many jobs to list. Raises `InvalidConfig`."""
    from training.errors import InvalidConfig
    from worker.client.rq_ids import LIMIT

    if text is None:
        return LIMIT
    # The length first: int() refuses thousands of digits with an error of its own.
    short = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_LISTED))
    if not short or not 1 <= int(text) <= MOST_LISTED:
        raise InvalidConfig(
            f"--limit is {_cut(text)}, but must be a whole number of at least 1 and at most {MOST_LISTED}",
            field="limit",
        )
    return int(text)


@main.command()
@click.argument("job_id", metavar="JOB", shell_complete=_completing("jobs that go on"))
def cancel(job_id: str) -> None:
    """Stop a job: at once in the queue, within a step when it runs."""
    from training.errors import InvalidConfig

    client = _client(_settings())
    _check_id(job_id)
    if not client.cancel(job_id):
        status = client.status(job_id).status
        raise InvalidConfig(
            f"job {job_id!r} is {status}; only a queued or running job can be cancelled", field="job_id"
        )
    click.echo(f"{job_id} is asked to stop")


@main.group()
def quarantine() -> None:
    """Look at what was taken out of the queue because it cannot be a job."""


@quarantine.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def quarantine_list(as_json: bool) -> None:
    """List it, oldest first."""
    from worker.queue.quarantine import entries, printable

    for name, entry in entries(_redis()).items():
        if as_json:
            click.echo(json.dumps({"id": name, **entry.model_dump()}))
        else:
            click.echo(f"{printable(name)}  {printable(entry.queue)}  {printable(entry.reason)}")


@quarantine.command("drop")
@click.argument("names", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Everything that is there.")
def quarantine_drop(names: tuple[str, ...], everything: bool) -> None:
    """Forget it, and delete what is left of the job; an ID is as `list` shows it."""
    from training.errors import InvalidConfig
    from worker.queue.quarantine import drop, drop_all

    if bool(names) == everything:
        raise InvalidConfig("quarantine drop needs either ids or --all; `preflight quarantine list` shows the ids")
    connection = _redis()
    if everything:
        click.echo(f"{drop_all(connection)} dropped")
        return
    # `list` shows ASCII alone; what else was typed need not even be UTF-8.
    unknown = [name for name in names if not (name.isascii() and drop(connection, name))]
    if unknown:
        raise InvalidConfig(f"{', '.join(map(_cut, unknown))} is not in quarantine; the others are dropped")
    click.echo(f"{len(names)} dropped")


@main.command()
@_job_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def train(as_json: bool, **options: object) -> None:
    """Train without Redis: the same stages, children and artifact as a job from the queue."""
    job, settings = _job(options), _settings()  # a mistake is told before the rest is imported
    from worker.cli.formatting.choices import summary
    from worker.jobs.local.training import train_here

    _log_to_stderr(settings)
    result = train_here(job, settings)
    if as_json:
        click.echo(result.model_dump_json())
    else:
        click.echo(summary(result))


@main.command()
@click.argument("model", metavar="JOB|DIR")
def upload(model: str) -> None:
    """Send a finished model to where PREFLIGHT_ARTIFACT_URL and PREFLIGHT_MLFLOW_URI say."""
    from worker.jobs.local.training import upload_here

    for where in upload_here(model, _settings()):
        click.echo(where)


@main.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with all probabilities.")
def predict(model: Path, images: tuple[Path, ...], as_json: bool) -> None:
    """Say what a trained model sees in pictures.

    MODEL is the directory of an artifact, the model in it, or an exported .onnx file. IMAGE is PNG or JPEG of any size,
    dark on light or light on dark; it is centred as MNIST's images are.
    """
    from worker.jobs.local.predict import Refused, predict_here
    from worker.queue.quarantine import printable

    refused = False
    for answer in predict_here(model, images):
        if isinstance(answer, Refused):
            refused = True
            click.echo(f"preflight: {printable(answer.why)}", err=True)
        elif as_json:
            click.echo(answer.model_dump_json())
        else:
            click.echo(f"{answer.label:3}  {answer.confidence:6.1%}  {printable(answer.image)}")
    raise SystemExit(BAD_INPUT if refused else 0)


@main.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--onnx", "target", type=click.Path(path_type=Path), metavar="FILE", help="Default: beside the model.")
def export(artifact: Path, target: Path | None) -> None:
    """Write the model of an artifact as ONNX, and hold it against the model on the whole test set.

    It reads `images`, uint8 [N, C, H, W] with 0 for background and 255 for ink, and returns `probabilities`.
    """
    from worker.jobs.local.onnx import export_here

    settings = _settings()
    _log_to_stderr(settings)
    click.echo(export_here(artifact, target, settings))


@main.command()
@_job_options
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--explain", is_flag=True, help="Print everything that led to the plan.")
@click.option("--report", type=click.Path(), metavar="FILE", help="Also write it as one HTML page.")
def calibrate(as_json: bool, explain: bool, report: str | None, **options: object) -> None:
    """Measure this container for a job, and print the plan and why."""
    job, settings = _job(options), _settings()  # a mistake is told before the rest is imported
    if report is not None:
        _check_report(Path(report), calibrates=job.calibrate)
    from worker.cli.formatting.choices import choice_as_json, choice_as_text
    from worker.cli.formatting.explanation import explain_choice
    from worker.jobs.local.training import calibrate_here

    _log_to_stderr(settings)
    found = calibrate_here(job, settings)
    if as_json:
        click.echo(choice_as_json(found.choice))
    else:
        click.echo(
            explain_choice(found.choice, found.spec, found.resources) if explain else choice_as_text(found.choice)
        )
    if report is not None:
        _write_report(Path(report), found)


def _check_report(path: Path, *, calibrates: bool) -> None:
    """Raise `InvalidConfig` where no report can be, before anything is measured for it."""
    from training.errors import InvalidConfig

    if not calibrates:
        raise InvalidConfig(
            f"--report {path} needs a measurement, but calibration is off; leave out --no-calibrate", field="report"
        )
    try:
        possible = path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()
    except OSError:  # a name that is too long
        possible = False
    if not possible:
        raise InvalidConfig(
            f"--report {path} cannot be written; name a file in a directory that is there and writable", field="report"
        )


def _write_report(path: Path, found: Calibrated) -> None:
    from training.errors import InvalidConfig, PreflightError
    from training.system.atomic_files import write_atomically
    from worker.cli.formatting.explanation import facts
    from worker.report.calibration import render

    finding = found.choice.finding
    if finding is None:
        raise PreflightError(f"--report {path} is not written, as nothing was measured: {found.choice.why}")
    page = render(
        finding,
        title=f"{found.spec.model} on {found.spec.dataset}",
        facts=facts(found.choice, found.spec, found.resources),
    )
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise InvalidConfig(
            f"--report {path} cannot be written ({error.strerror}); name another file", field="report"
        ) from error


@main.group()
def cache() -> None:
    """Look at the plans that were measured here, or forget them."""


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def cache_list(as_json: bool) -> None:
    """List them, the newest first."""
    from calibration.cache.plan_cache import PlanCache
    from worker.cli.formatting.choices import cache_table, cached_as_json

    directory = _settings().cache_dir
    with _reaching(directory):
        entries = PlanCache(directory).entries()
    if as_json:
        for entry in entries:
            click.echo(cached_as_json(entry))
    else:
        click.echo(cache_table(entries))


@cache.command("clear")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
def cache_clear(keys: tuple[str, ...]) -> None:
    """Forget all plans and measurements, or those of some keys; the beginning of a KEY will do."""
    from calibration.cache.plan_cache import PlanCache
    from training.errors import InvalidConfig

    directory = _settings().cache_dir
    kept = PlanCache(directory)
    with _reaching(directory):
        known = kept.keys()
        for key in keys:
            meant = [name for name in known if key and name.startswith(key)]
            if not meant:
                raise InvalidConfig(
                    f"key {_cut(key)} is not in the cache; `preflight cache list` shows the keys", field="key"
                )
            if len(meant) > 1:
                raise InvalidConfig(
                    f"key {_cut(key)} begins {len(meant)} keys of the cache; write more of it", field="key"
                )
        gone = sum(map(kept.clear, keys)) if keys else kept.clear()
    click.echo(f"{gone} cleared")


@contextmanager
def _reaching(directory: Path) -> Iterator[None]:
    from training.errors import PreflightError

    try:
        yield
    except OSError as error:
        raise PreflightError(
            f"the plan cache in {directory} cannot be read or cleared ({error.strerror}); "
            "see to its files, or set PREFLIGHT_CACHE_DIR"
        ) from error


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def doctor(as_json: bool) -> None:
    """Look at everything a job needs; exit code 1 when something would fail."""
    from worker.ops.doctor import examine

    failed = False
    for finding in examine(_settings()):
        failed |= finding.status == "fail"
        if as_json:
            line = {"name": finding.name, "status": finding.status, "detail": finding.detail}
            click.echo(json.dumps(line))
        else:
            click.echo(f"{finding.status:4}  {finding.name:18}  {finding.detail}")
    raise SystemExit(FAILURE if failed else 0)


@main.command()
def health() -> None:
    """Say whether the worker or the web service of this container lives; exit code 1: not."""
    from worker.ops.health import look

    click.echo(look(_settings()))


@main.command()
@click.argument("shell", metavar="bash|zsh|fish", shell_complete=_completing("shells"))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, job ids and names: eval "$(preflight completion bash)"."""
    from worker.cli.completion import script

    click.echo(script(main, shell))


@main.command()
@_job_options
def demo(**options: object) -> None:
    """Watch one job from end to end: a Redis of its own, a real worker, real digits."""
    settings, asked = _settings(), _fields(options)  # a mistake is told before the rest is imported
    from worker.cli.demo import run_demo

    raise SystemExit(run_demo(settings, asked))


if __name__ == "__main__":
    main()
