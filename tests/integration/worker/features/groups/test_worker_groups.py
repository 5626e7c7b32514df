"""Several real workers train one job: gathering, deaths, leaving and joining."""

import os
import re
import signal
from pathlib import Path

import pytest
from redis import Redis
from support.groups.jobs import (
    assert_gone,
    await_children,
    group_job,
    named,
    start_group,
    tree,
    until,
    until_formed,
    work_horse,
)
from support.worker.services import StartWorker, digits_job, wait_for, wait_until
from support.worker.survival import assert_nothing_duplicated

from preflight import Client
from preflight.redis import keys
from preflight.wire import GroupChanged, GroupFormed, GroupShort, JobStarted, JobWarning

EXACT: dict[str, object] = {"deterministic": True}
"""Nothing is measured, and the weights are those of every run with so many workers."""


@pytest.mark.covers_children
def test_two_workers_train_one_job(client: Client, connection: Redis, start_worker: StartWorker) -> None:
    workers = start_group(start_worker, 2)
    client.enqueue(group_job("job", 2, epochs=6, **EXACT))
    assert wait_for(client, "job").status == "finished"
    result = client.result("job")
    assert result is not None
    assert result.workers == 2
    events = assert_nothing_duplicated(client, "job")
    (started,) = [event for event in events if isinstance(event, JobStarted)]
    (formed,) = [event for event in events if isinstance(event, GroupFormed)]
    assert len(set(formed.members)) == 2
    assert formed.members[0] == started.worker
    assert len(formed.cores) == len(formed.memory_mib) == 2
    for worker in workers:
        await_children(worker)
    assert connection.hgetall(keys.offers("preflight")) == {}
    member = named(workers, formed.members[1])
    wait_until(lambda: connection.hget(f"rq:worker:{formed.members[1]}", "state") == "idle")
    assert not connection.hexists(f"rq:worker:{formed.members[1]}", keys.GROUP)
    client.enqueue(digits_job(job_id="next"))
    client.enqueue(digits_job(job_id="after"))
    assert {wait_for(client, name).status for name in ("next", "after")} == {"finished"}
    member.stop()


@pytest.mark.slow
def test_a_group_goes_on_without_a_killed_member(client: Client, start_worker: StartWorker) -> None:
    workers = start_group(start_worker, 3)
    client.enqueue(group_job("job", {"min": 2, "max": 3}, epochs=60))
    members = until_formed(client, "job", 3)
    victim = named(workers, members[2])
    processes = tree(victim)
    os.kill(work_horse(victim).pid, signal.SIGKILL)
    os.kill(victim.process.pid, signal.SIGKILL)
    changed = until(client, "job", lambda event: isinstance(event, GroupChanged) and event.left != ())
    assert isinstance(changed, GroupChanged)
    assert (changed.workers, changed.left, changed.joined) == (2, (members[2],), ())
    state = wait_for(client, "job")
    assert (state.status, state.workers) == ("finished", 2)
    assert_gone(processes)
    assert_nothing_duplicated(client, "job")


@pytest.mark.slow
def test_too_few_workers_send_the_job_back(client: Client, connection: Redis, start_worker: StartWorker) -> None:
    """To the end of its queue, with all its retries; a second worker then finds it."""
    (first,) = start_group(start_worker, 1, PREFLIGHT_GATHER_SECONDS="1")
    client.enqueue(group_job("job", 2, epochs=6, **EXACT))
    client.enqueue(digits_job(job_id="behind"))
    short = until(client, "job", lambda event: isinstance(event, GroupShort))
    assert isinstance(short, GroupShort)
    assert (short.workers, short.wanted) == (1, 2)
    assert wait_for(client, "behind").status == "finished"
    assert connection.hget("rq:job:job", "retries_left") == "2"
    start_group(start_worker, 1, PREFLIGHT_GATHER_SECONDS="20")
    state = wait_for(client, "job")
    assert (state.status, state.workers) == ("finished", 2)
    assert connection.hget(keys.fence("job"), "deaths") == "0"
    first.stop()


def test_a_worker_without_groups_passes_the_job_on(client: Client, start_worker: StartWorker) -> None:
    start_worker(environment={"PREFLIGHT_GATHER_SECONDS": "1"})
    client.enqueue(group_job("job", 2, epochs=6, **EXACT))
    until(client, "job", lambda event: isinstance(event, GroupShort) and "PREFLIGHT_GROUP" in event.message)
    client.enqueue(group_job("alone", {"min": 1, "max": 2}, epochs=2))
    until(client, "alone", lambda event: isinstance(event, JobWarning) and "PREFLIGHT_GROUP" in event.message)
    assert wait_for(client, "alone").status == "finished"


@pytest.mark.slow
def test_a_member_leaves_for_a_job_that_waits(client: Client, start_worker: StartWorker) -> None:
    """The group goes on with two; the third worker takes the job."""
    workers = start_group(start_worker, 3)
    client.enqueue(group_job("job", {"min": 2, "max": 3}, epochs=600))
    members = until_formed(client, "job", 3)
    client.enqueue(digits_job(job_id="waiting", epochs=1))
    state = wait_for(client, "waiting")
    assert state.status == "finished"
    assert named(workers, str(state.worker)) is not named(workers, members[0])
    assert client.status("job").status == "running"
    changed = until(client, "job", lambda event: isinstance(event, GroupChanged) and event.left != ())
    assert isinstance(changed, GroupChanged)
    assert changed.workers == 2
    client.cancel("job")
    assert wait_for(client, "job").status == "cancelled"
    for worker in workers:
        await_children(worker)


@pytest.mark.slow
def test_a_worker_with_another_version_is_named_and_let_go(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Its version is that of a distribution that comes first on its path, with the same code."""
    metadata = tmp_path / "site" / "torch-9.9.9.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: torch\nVersion: 9.9.9\n")
    (leader,) = start_group(start_worker, 1, PREFLIGHT_GATHER_SECONDS="15")
    client.enqueue(group_job("job", 2, epochs=6, **EXACT))
    start_group(start_worker, 1, PYTHONPATH=str(tmp_path / "site"), PREFLIGHT_GATHER_SECONDS="15")
    warning = until(client, "job", lambda event: isinstance(event, JobWarning))
    assert isinstance(warning, JobWarning)
    assert re.search("torch (9.9.9 instead of|.* instead of 9.9.9)", warning.message)  # whichever leads by now
    start_group(start_worker, 1)
    assert wait_for(client, "job").status == "finished"
    assert_nothing_duplicated(client, "job")
    leader.stop()
