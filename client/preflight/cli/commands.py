"""A client's commands: enqueue, resubmit, watch, jobs, cancel, retry, delete, note, run, completion."""

import json
import time
from typing import TYPE_CHECKING, Final

import click

from preflight.cli.arguments import check_job_id, parse_enqueued_job, parse_limit, parse_statuses
from preflight.cli.context import load_settings, make_client
from preflight.cli.exit_codes import FAILURE
from preflight.cli.formatting.text import printable
from preflight.cli.options import JobCommand, completing, job_options
from preflight.cli.watch import watch_job
from preflight.contract.registry import DATASETS, find
from preflight.errors import InvalidConfig
from preflight.launch.run import run

if TYPE_CHECKING:
    from preflight import Client


DELETED_WITHIN: Final = 10.0
"""Seconds for which `delete` waits for a worker."""


@click.command(cls=JobCommand)
@job_options
@click.option("--wait", is_flag=True, help="Watch the job until it ends; the exit code is the job's.")
@click.option("--ensure", is_flag=True, help="Keep it in the outbox until it has ended; see `resubmit`.")
def enqueue(wait: bool, ensure: bool, **options: object) -> None:
    """Enqueue a job and print its id."""
    settings = load_settings()
    client = make_client(settings)

    def require_dataset(name: str) -> None:
        from preflight.client.datasets import require_known

        require_known(name, frozenset() if find(DATASETS, name) is not None else client.datasets())

    job = parse_enqueued_job(options, require_dataset)
    result = client.enqueue(job, job_timeout=settings.job_timeout, ensure=ensure)
    repeated = None if result.created or result.waiting else client.is_repeated(result.job_id, job)
    if repeated is not False:
        click.echo(result.job_id)
    if result.waiting:
        click.echo("Redis does not answer; the job waits in the outbox for `preflight resubmit`", err=True)
        raise SystemExit(FAILURE)
    if repeated is False:
        raise InvalidConfig(
            f"job {result.job_id!r} exists already and asks for something else, so nothing was enqueued; take another "
            "id, or leave it out",
            field="job_id",
        )
    if not result.created:
        click.echo(f"job {result.job_id} exists already; nothing was enqueued", err=True)
    if wait:
        _say_who_takes_it(client, settings.queue)
        watch_job(client, result.job_id)


def _say_who_takes_it(client: "Client", queue: str) -> None:
    """Warn where no worker takes jobs of the queue: the job would wait without a message."""
    if client.workers() == 0:
        click.echo(
            f"no worker takes jobs of the queue {queue!r} now; the job waits until `preflight worker` is started with "
            f"PREFLIGHT_QUEUE={queue} on this Redis",
            err=True,
        )


@click.command()
def resubmit() -> None:
    """Enqueue lost jobs of the outbox again. Print their ids."""
    for job_id in make_client(load_settings()).resubmit():
        click.echo(job_id)


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=completing("jobs"))
@click.option("--plain", is_flag=True, help="Print one line per event; default where stdout is not a terminal.")
def watch(job_id: str, plain: bool) -> None:
    """Watch a job until it ends. The exit code is the job's. Ctrl-C leaves the job running."""
    watch_job(make_client(load_settings()), job_id, plain=plain)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--status", "statuses", metavar="STATUS,...", shell_complete=completing("statuses"),
              help="Only jobs that are queued, running, finished, failed or cancelled.")  # fmt: skip
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only jobs with this tag; may be repeated.")
@click.option("--limit", metavar="N", help="Only the newest N; default: 100.")
def jobs(as_json: bool, statuses: str | None, tags: tuple[str, ...], limit: str | None) -> None:
    """List the jobs in Redis, newest last, then the running ones."""
    from preflight.cli.formatting.jobs import job_table
    from preflight.client.notes import Notes
    from preflight.client.results import PAGE_SIZE

    wanted, most = parse_statuses(statuses), parse_limit(limit)
    client = make_client(load_settings())
    states = client.jobs(limit=PAGE_SIZE if tags else most, statuses=wanted)
    notes = client.notes_of([state.job_id for state in states])
    if tags:
        states = [state for state in states if {*tags} <= {*notes.get(state.job_id, Notes()).tags}][:most]
    if as_json:
        for state in reversed(states):
            given = notes.get(state.job_id, Notes()).model_dump(exclude_defaults=True)
            click.echo(json.dumps({**state.model_dump(mode="json", exclude_none=True), **given}, ensure_ascii=False))
    else:
        click.echo(job_table(states[::-1], notes))
    if client.suspended():
        click.echo("workers are suspended and take no job; `rq resume` ends it", err=True)
    if limit is None and len(states) == most:
        click.echo(f"there may be more than these {most} jobs; --limit N lists more", err=True)


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=completing("active jobs"))
def cancel(job_id: str) -> None:
    """Cancel a queued or running job. A running one stops within a step."""
    client = make_client(load_settings())
    check_job_id(job_id)
    if not client.cancel(job_id):
        status = client.status(job_id).status
        raise InvalidConfig(
            f"job {job_id!r} is {status}; only a queued or running job can be cancelled", field="job_id"
        )
    click.echo(f"cancellation of {job_id} requested")


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=completing("jobs"))
def retry(job_id: str) -> None:
    """Enqueue a failed or cancelled job again. It resumes from its checkpoint, where there is one."""
    client = make_client(load_settings())
    check_job_id(job_id)
    click.echo(f"{client.retry(job_id)} is queued again")


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=completing("jobs"))
@click.argument("text", metavar="[TEXT]", required=False)
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Add a tag; may be repeated.")
@click.option("--untag", "gone", metavar="TAG", multiple=True, help="Remove a tag; may be repeated.")
def note(job_id: str, text: str | None, tags: tuple[str, ...], gone: tuple[str, ...]) -> None:
    """Write a note about a job, or tag it.

    Without TEXT and options both are printed. An empty TEXT removes the note.
    """
    client = make_client(load_settings())
    check_job_id(job_id)
    found = client.notes(job_id)
    if text is not None or tags or gone:
        kept = [tag for tag in (*found.tags, *tags) if tag not in gone]
        found = client.annotate(job_id, note=text, tags=kept if tags or gone else None)
    if found.tags:
        click.echo(f"tags: {printable(' '.join(found.tags))}")
    if found.note:
        click.echo("\n".join(map(printable, found.note.splitlines())))


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=completing("jobs"))
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(job_id: str, yes: bool) -> None:
    """Delete the records, model and checkpoints of an ended job.

    What was exported stays. The id is not trained again.
    """
    client = make_client(load_settings())
    check_job_id(job_id)
    if not yes and not click.confirm(f"delete job {job_id}? It cannot be undone, and its id is not trained again"):
        raise SystemExit(FAILURE)
    own = client.delete(job_id, by="preflight delete")
    deadline = time.monotonic() + DELETED_WITHIN
    while (asked := client.deletion(own)) is not None and asked.refused is None and time.monotonic() < deadline:
        time.sleep(0.2)
    if asked is None:
        click.echo(f"{own} is deleted")
    elif asked.refused is not None:
        raise InvalidConfig(asked.refused, field="job_id")
    else:
        click.echo(f"{own} is deleted once a worker of the queue runs; none has answered for {DELETED_WITHIN:g} s")


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", shell_complete=completing("shells"))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script. Use: eval "$(preflight completion bash)"."""
    from preflight.cli.completion import script

    click.echo(script(context.find_root().command, shell))


COMMANDS: Final = (cancel, completion, delete, enqueue, jobs, note, resubmit, retry, run, watch)
