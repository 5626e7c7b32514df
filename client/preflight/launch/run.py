"""`preflight run`: start any command; the PyTorch training in it is tuned to the container while it runs."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from preflight.config.directories import local_path
from preflight.container.oom_kills import oom_kills
from preflight.container.resources import Throttling, binding_quota, detect
from preflight.launch import site
from preflight.launch.command import NOT_EXECUTABLE, NOT_FOUND, run_command
from preflight.launch.site.sitecustomize import VARIABLE
from preflight.launch.starts import Start
from preflight.tuner.journal import Options

if TYPE_CHECKING:
    from preflight.launch.events import EventLog
    from preflight.launch.history import History

SITE: Final = Path(site.__file__).parent
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where a container with a read-only root can be written


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"], "ignore_unknown_options": True, "allow_interspersed_args": False,
    }
)  # fmt: skip
@click.option("--exact", is_flag=True, help="Change nothing after the first step; results stay the same bit for bit.")
@click.option("--steps", type=click.IntRange(min=1), help="Optimizer steps of the training, to predict its end.")
@click.option(
    "--advise",
    is_flag=True,
    help="Measure after the last step, for a minute or two, what changes what is learned, and say it: bfloat16, "
    "channels_last, a larger batch, torch.compile, DataLoader workers.",
)
@click.option(
    "--same-start", is_flag=True, help="Set no allocator, huge pages or waiting of threads at the start, and try none."
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing at the end.")
@click.option("--log", is_flag=True, help="Print the events of docs/reference/wire.md on stderr, as JSON lines.")
@click.option("--json", "report", type=click.Path(dir_okay=False, path_type=Path), help="Write what was found here.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(steps: int | None, report: Path | None, command: tuple[str, ...], **flags: bool) -> None:
    """Run COMMAND and tune its PyTorch training to this container.

    COMMAND is a script with its interpreter, a module, or a program such as torchrun: preflight run -- python train.py.
    Its steps are timed under other numbers of threads and settings of malloc, and the fastest stay. Nothing of it runs
    twice, and what is learned differs by rounding alone.
    """
    is_plain = flags["exact"] or flags["same_start"]
    history = None if is_plain else _history(command)
    start = Start() if history is None else history.choose(os.environ)
    folder = _make_folder(
        Options(exact=flags["exact"], steps=steps, interop=start.interop, advise=flags["advise"])
    )  # fmt: skip
    if folder is None:
        _say("preflight: the command ran untouched: no folder for temporary files can be written")
    events = _event_log(folder) if flags["log"] and folder is not None else None
    quota, kills, began = binding_quota(), oom_kills(), time.monotonic()
    throttling = Throttling.read(quota)
    try:
        status = run_command(command, _variables(folder, start), events.write_new if events else None)
    except OSError as error:
        _remove(folder)
        _say(f"preflight: {command[0]} cannot be started: {error.strerror}")
        raise SystemExit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE) from error
    seconds = time.monotonic() - began
    try:
        # Imported here: the command would start later for what only its end needs.
        from preflight.launch.block import Ended, block, summary
        from preflight.launch.findings import read_findings

        ended = Ended(
            status=status, seconds=seconds, kills=max(0, oom_kills() - kills),
            memory_limit=detect().memory_bytes, throttled=Throttling.read(quota).share_since(throttling),
            quota=None if quota is None else float(quota.processors),
        )  # fmt: skip
        if folder is not None:
            findings = read_findings(folder)
            said = [] if history is None else history.learn(start, findings, status)
            if findings.processes and not flags["advise"]:
                said.append("bfloat16 was not tried: --advise")
            if events is not None:
                events.write_new()
            if report is not None:
                _write_report(report, summary(command, findings, ended, said))
            if not flags["quiet"]:
                _say(block(findings, ended, said))
            if not any(process.is_alive for process in findings.processes):
                _remove(folder)
    except Exception as error:  # the command has ended, and its exit code counts
        _say(f"preflight: what was found cannot be told ({type(error).__name__}: {error})")
    raise SystemExit(status)


def _write_report(path: Path, content: str) -> None:
    """Write the file of `--json`; the command has ended, and its exit code counts whatever becomes of the file."""
    try:
        path.write_text(f"{content}\n")
    except OSError as error:
        _say(f"preflight: {path} cannot be written ({error.strerror}); name another --json file")


def _say(text: str) -> None:
    """Write to stderr; the command's exit code counts, whoever reads that."""
    with suppress(OSError):
        click.echo(text, err=True)


def _event_log(folder: Path) -> "EventLog | None":
    """Return the log on stderr; None: that is closed."""
    from preflight.launch.events import EventLog

    return None if sys.stderr is None else EventLog(folder, sys.stderr)


def _history(command: Sequence[str]) -> "History | None":
    """Return the history of earlier starts; None: there is no place for it, or no working directory."""
    from preflight.launch.history import History

    with suppress(OSError, ValueError):
        folder = local_path(os.environ.get("PREFLIGHT_CACHE_DIR") or "~/.cache/preflight")
        return History(folder / "run", command, detect())
    return None


def _variables(folder: Path | None, start: Start) -> dict[str, str]:
    """Return the environment of the command: ours, the settings of the start, and the path to the hook."""
    variables = start.environment(os.environ)
    if folder is not None:
        variables[VARIABLE] = str(folder)
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SITE), variables.get("PYTHONPATH"))))
    return variables


def _make_folder(options: Options) -> Path | None:
    for where in (None, SHARED_MEMORY):
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix="preflight-run-", dir=where))
            options.write(folder / "options.json")
        except OSError:  # a disk that is full takes a folder, and no file
            _remove(folder)
        else:
            return folder
    return None


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
