"""The `preflight` command: a client's commands, those of the worker where it is installed, errors as one sentence.

The worker adds its commands as entry points of the group `preflight.commands`, as other packages may; one is imported
when it runs. A client's commands need no worker, and work where a file hides one of its packages.
"""

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from preflight.cli.arguments import quote
from preflight.cli.commands import COMMANDS
from preflight.cli.exit_codes import BAD_INPUT, FAILURE, INTERRUPTED
from preflight.cli.interrupts import handle_hangup, raised_safely
from preflight.contract.registry import entries, nearest
from preflight.errors import InvalidConfig, PreflightError
from preflight.launch.nested import leave_outer_run
from preflight.packages import NAMES, explain_hidden, how_to_install, is_worker_installed

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "preflight.commands"
"""Entry points of further commands: name of the command = click command."""
NO_TEMPORARY: Final = "No usable temporary directory"
"""Part of the message of `tempfile`."""
COLLECTOR_THRESHOLD: Final = 50_000
"""New objects between two runs of the garbage collector; with the default, 700, the imports cause 180 runs."""
ABSENT: Final = f"preflight-worker is not installed here; {how_to_install('train')}"


class CommandGroup(click.Group):
    """The commands of this package and of entry points; each failure is one sentence on stderr and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that can be run here."""
        hides_worker = explain_hidden() is not None
        for entry in entries(GROUP):
            if entry.name not in self.commands and not (hides_worker and is_workers(entry)):
                with suppress(InvalidConfig):
                    self.add_command(load_command(entry), entry.name)
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None where no package has one of this name.

        Raises:
            InvalidConfig: it cannot be imported, or the worker, which may have it, is not installed. For the shell,
                which asks for completions, it is None then.
        """
        if cmd_name not in self.commands:
            try:
                found = find_command(cmd_name, self.commands)
            except InvalidConfig:
                if ctx.resilient_parsing:
                    return None
                raise
            if found is not None:
                self.add_command(found, cmd_name)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; `--debug` lets exceptions pass."""
        gc.set_threshold(COLLECTOR_THRESHOLD)
        leave_outer_run(os.environ)
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
        _suit_terminal(ctx)
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
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # `head` has read enough: click ends quietly
            raise SystemExit(_report(error)) from error

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say which commands are not here, and why."""
        absent = explain_hidden() if is_worker_installed() else ABSENT
        if absent is not None:
            formatter.write(f"\nThe worker's commands are not here: {absent}\n")  # a path that is wrapped is no path
        super().format_epilog(ctx, formatter)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}, commands=[*COMMANDS])
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="preflight-client", prog_name="preflight")
def main(debug: bool) -> None:
    """Train digit recognizers from a Redis queue, as fast as the container allows."""


def find_command(name: str, known: Collection[str]) -> click.Command | None:
    """Return the command that an entry point has as `name`; None where there is none.

    Raises:
        InvalidConfig: it cannot be imported, or the worker, which may have it, is not installed.
    """
    for entry in entries(GROUP, name):
        if is_workers(entry) and (hidden := explain_hidden()) is not None:
            raise InvalidConfig(hidden)
        return load_command(entry)
    if is_worker_installed():
        return None
    raise InvalidConfig(f"{quote(name)} is not a command of the client{nearest(name, [*known])}; {ABSENT}")


def is_workers(entry: "EntryPoint") -> bool:
    """Whether a command is in one of the worker's packages, whose names applications have, too."""
    return entry.module.partition(".")[0] in NAMES


def load_command(entry: "EntryPoint") -> click.Command:
    """Import a command; raises `InvalidConfig` where that is impossible."""
    try:
        found: object = entry.load()
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(
            f"command {entry.name!r} is registered as {entry.value} but cannot be imported ({error}); "
            "install its package again"
        ) from error
    if not isinstance(found, click.Command):
        raise InvalidConfig(f"command {entry.name!r} is registered as {entry.value}, which is no command of click")
    return found


def _suit_terminal(ctx: click.Context) -> None:
    """Print no colours where the user or the terminal wants none; escape characters that stdout's encoding lacks."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _interrupt(number: int, frame: object) -> None:  # noqa: ARG001 - the signal handler's signature
    raise KeyboardInterrupt


def _report(error: Exception) -> int:
    """Print `error` as one sentence and return the exit code."""
    message = str(error) or type(error).__name__
    if (unusable := _explain_redis(error)) is not None:
        message = unusable
    elif isinstance(error, FileNotFoundError) and NO_TEMPORARY in message:
        message = f"{error.strerror}; mount a tmpfs on /tmp or set TMPDIR"
    elif not isinstance(error, PreflightError):
        message = f"{type(error).__name__}: {message}; run again with --debug to see where"
    click.echo(f"preflight: {' '.join(message.split())}", err=True)
    return BAD_INPUT if isinstance(error, InvalidConfig) else FAILURE


def _explain_redis(error: Exception) -> str | None:
    """Return the sentence on a Redis that cannot be used; None for another error."""
    if "redis" not in sys.modules:  # its import takes longer than most commands
        return None
    from preflight.cli.unusable import explain_error

    return explain_error(error)
