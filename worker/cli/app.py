"""The `preflight` command: errors become one sentence on stderr and an exit code."""

import gc
import signal
import sys
from typing import Final

import click

from preflight.cli.run import run
from preflight.errors import InvalidConfig, PreflightError
from training.process.interrupts import raised_safely
from worker.cli.commands import admin, cache, calibrate, local, quarantine, queue, service
from worker.cli.exit_codes import BAD_INPUT, FAILURE, INTERRUPTED
from worker.state.signals import handle_hangup

COMMANDS: Final = (
    admin.completion, admin.doctor, admin.health, cache.cache, calibrate.calibrate, local.demo, local.export,
    local.predict, local.profile, local.train, local.upload, quarantine.quarantine, queue.cancel, queue.enqueue,
    queue.jobs, queue.resubmit, queue.retry, queue.watch, run, service.serve, service.worker,
)  # fmt: skip


NO_TEMPORARY: Final = "No usable temporary directory"
"""Part of the message of `tempfile`."""
COLLECTOR_THRESHOLD: Final = 50_000
"""New objects between two looks of the garbage collector; by default 700, where imports are looked at 180 times."""


class ErrorReportingGroup(click.Group):
    """Print each failure as one sentence on stderr and exit with its code."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; `--debug` lets exceptions pass."""
        gc.set_threshold(COLLECTOR_THRESHOLD)
        try:
            return self._invoke(ctx)
        finally:
            gc.freeze()  # the interpreter's end would look at every module again, for 0.1 s

    def _invoke(self, ctx: click.Context) -> object:
        interrupt = raised_safely(_interrupt)
        # PID 1 of a container has no default action for SIGTERM: without a handler the signal is ignored.
        signal.signal(signal.SIGTERM, interrupt)
        handle_hangup(interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
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
            raise SystemExit(_report(error)) from error


@click.group(cls=ErrorReportingGroup, context_settings={"help_option_names": ["-h", "--help"]}, commands=list(COMMANDS))
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="preflight-worker", prog_name="preflight")
def main(debug: bool) -> None:
    """Train digit recognizers from a Redis queue, as fast as the container allows."""


def _interrupt(number: int, frame: object) -> None:  # noqa: ARG001 - the signal handler's signature
    raise KeyboardInterrupt


def _report(error: Exception) -> int:
    """Print `error` as one sentence and return the exit code."""
    message = str(error) or type(error).__name__
    if _is_cluster_error(error):
        from preflight.redis.retry import CLUSTERED

        message = f"Redis {CLUSTERED}"
    elif (unusable := _explain_redis(error)) is not None:
        message = unusable
    elif isinstance(error, FileNotFoundError) and NO_TEMPORARY in message:
        message = f"{error.strerror}; mount a tmpfs on /tmp or set TMPDIR"
    elif not isinstance(error, PreflightError):
        message = f"{type(error).__name__}: {message}; run again with --debug to see where"
    click.echo(f"preflight: {' '.join(message.split())}", err=True)
    return BAD_INPUT if isinstance(error, InvalidConfig) else FAILURE


REFUSED_WRITES: Final = (
    ("command not allowed when used memory", "is full",
     "raise its maxmemory or delete what is not needed, and keep maxmemory-policy noeviction"),
    ("read only replica", "is a read-only replica", "set REDIS_URL to the address of its primary"),
    ("MISCONF", "takes no writes, as it cannot save to its disk", "make room there, or correct its setting dir"),
    ("NOREPLICAS", "takes no writes, as it has too few replicas", "start them, or lower its min-replicas-to-write"),
    ("MASTERDOWN", "has lost its primary", "try again when that is back, or set REDIS_URL to the new one"),
)  # fmt: skip
"""Part of an error of Redis, which a script may have raised -> predicate, and what to do."""


def _explain_redis(error: Exception) -> str | None:
    """Return the sentence on a Redis that is away, denies access or takes no writes; None for another error."""
    if "redis" not in sys.modules:
        return None
    from redis.exceptions import ConnectionError, NoPermissionError, RedisError, TimeoutError

    from worker.broker.connect import explain_unusable
    from worker.cli.context import load_settings

    for sign, state, remedy in REFUSED_WRITES:
        if isinstance(error, RedisError) and sign in str(error):
            settings = load_settings()
            said = settings.redact(str(error)).rstrip(".")
            return f"Redis at {settings.safe_redis_url} {state} ({said}); {remedy}"
    if not isinstance(error, ConnectionError | NoPermissionError | TimeoutError):
        return None
    return explain_unusable(load_settings(), error)


def _is_cluster_error(error: Exception) -> bool:
    if "redis" not in sys.modules:  # its import takes longer than most commands
        return False
    from redis.exceptions import AskError, ClusterCrossSlotError, ClusterError

    return isinstance(error, AskError | ClusterCrossSlotError | ClusterError)
