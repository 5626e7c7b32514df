"""Groups whose workers differ, are slow, or cannot reach each other: real workers on networks of their own."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from support.files.cgroups import new_cgroup
from support.groups.jobs import GROUP, assert_gone, await_children, group_job, named, tree, until, until_formed
from support.groups.networks import Host, Network, new_network
from support.worker.services import StartWorker, Worker, digits_job, wait_for
from support.worker.survival import assert_nothing_duplicated

from preflight import Client
from preflight.redis import keys
from preflight.wire import AnyEvent, GroupChanged, GroupFormed, GroupMeasured, JobWarning

pytestmark = pytest.mark.slow  # CI has 20 minutes in all

CHANCE = 0.1
"""Accuracy of a guess among ten digits."""
PATIENT = {"PREFLIGHT_GATHER_SECONDS": "30"}
"""Of a leader that is started alone, so that it is known who leads."""
ANY = {"min": 1, "max": 2}
EPOCHS = 250
"""Of a job that a second worker starts up for, sits down at, and fails to reach, while its leader trains: some 30 s."""
QUARTER_CORE = {"cpu.cfs_quota_us": "25000", "cpu.cfs_period_us": "100000"}


@pytest.fixture
def network() -> Iterator[Network]:
    """An empty network."""
    with new_network() as network:
        yield network


@pytest.fixture
def slow_cgroup() -> Iterator[Path]:
    """A cgroup with a quarter of a core."""
    with new_cgroup("cpu") as directory:
        for name, value in QUARTER_CORE.items():
            (directory / name).write_text(value)
        yield directory


def start_on(start_worker: StartWorker, host: Host, **environment: str) -> Worker:
    """Start a worker that takes part in groups, on a host."""
    return start_worker(prefix=host.prefix, environment={**GROUP, **host.environment, **environment})


def start_pair(
    client: Client, start_worker: StartWorker, hosts: tuple[Host, Host], leads: dict[str, str], joins: dict[str, str],
    **fields: object,
) -> list[Worker]:  # fmt: skip
    """Start a worker that leads `job`, and one that sits down there; each with an environment."""
    leader = start_on(start_worker, hosts[0], **{**PATIENT, **leads})
    client.enqueue(group_job("job", ANY, **{"epochs": EPOCHS, **fields}))
    wait_for(client, "job", "running")
    return [leader, start_on(start_worker, hosts[1], **joins)]


def assert_ended_well(client: Client, connection: Redis, workers: list[Worker]) -> list[AnyEvent]:
    """Assert that `job` has finished once and learned, and that its workers are free; return its events."""
    assert wait_for(client, "job").status == "finished"
    result = client.result("job")
    assert result is not None
    assert (result.test_accuracy or 0) > 3 * CHANCE
    events = assert_nothing_duplicated(client, "job")
    for event in events:
        print(f"{event.ts - events[0].ts:.1f} s: {event.type} {getattr(event, 'message', '')}")
    for worker in workers:
        await_children(worker)
    assert connection.hgetall(keys.offers("preflight")) == {}
    for number in range(len(workers)):
        client.enqueue(digits_job(job_id=f"next-{number}", epochs=1))
    assert {wait_for(client, f"next-{number}").status for number in range(len(workers))} == {"finished"}
    for worker in workers:
        processes = tree(worker)
        worker.stop()
        assert_gone(processes)
    return events


def warnings(events: list[AnyEvent]) -> list[str]:
    return [event.message for event in events if isinstance(event, JobWarning)]


def formed(events: list[AnyEvent]) -> list[GroupFormed]:
    return [event for event in events if isinstance(event, GroupFormed)]


def test_blocked_ports_are_named_and_the_leader_goes_on_alone(
    client: Client, connection: Redis, start_worker: StartWorker, network: Network
) -> None:
    hosts = network.add_host(), network.add_host()
    network.part()
    workers = start_pair(client, start_worker, hosts, {}, {})
    events = assert_ended_well(client, connection, workers)
    (warning,) = warnings(events)
    assert "does not train with the group" in warning
    assert "open all ports between workers" in warning
    assert formed(events) == []


@pytest.mark.slow
def test_members_that_cannot_reach_each_other_do_not_hold_the_job_up(
    client: Client, connection: Redis, start_worker: StartWorker, network: Network
) -> None:
    """Each reaches the leader."""
    hosts = [network.add_host() for _ in range(3)]
    leader = start_on(start_worker, hosts[0], **PATIENT)
    client.enqueue(group_job("job", {"min": 1, "max": 3}, epochs=EPOCHS))
    wait_for(client, "job", "running")
    for host in hosts[1:]:
        host.part()
    workers = [leader, *(start_on(start_worker, host) for host in hosts[1:])]
    events = assert_ended_well(client, connection, workers)
    assert any("open all ports between workers" in warning for warning in warnings(events))


@pytest.mark.slow
def test_an_address_that_others_do_not_reach_is_named(
    client: Client, connection: Redis, start_worker: StartWorker, network: Network
) -> None:
    """It is one of the leader's machine: its loopback's."""
    hosts = network.add_host(), network.add_host()
    workers = start_pair(client, start_worker, hosts, {"PREFLIGHT_ADVERTISE_HOST": "127.0.0.1"}, {})
    events = assert_ended_well(client, connection, workers)
    (warning,) = warnings(events)
    assert "127.0.0.1" in warning
    assert "PREFLIGHT_ADVERTISE_HOST" in warning


@pytest.mark.slow
def test_a_slow_member_is_measured_and_let_go(
    client: Client, connection: Redis, start_worker: StartWorker, slow_cgroup: Path
) -> None:
    """It has a quarter of a core."""
    leader = start_worker(environment={**GROUP, **PATIENT})
    client.enqueue(group_job("job", ANY, epochs=EPOCHS))
    wait_for(client, "job", "running")
    enter = ["sh", "-c", f'echo $$ > {slow_cgroup}/cgroup.procs && exec "$@"', "sh"]
    workers = [leader, start_worker(environment=GROUP, prefix=enter)]
    events = assert_ended_well(client, connection, workers)
    (measured,) = [event for event in events if isinstance(event, GroupMeasured)]
    assert not measured.kept
    assert measured.speeds[1] < measured.speeds[0] / 2
    assert any("it is too slow for the others" in warning for warning in warnings(events))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1, 60])
def test_a_network_that_is_lost_for_a_while(
    client: Client, connection: Redis, start_worker: StartWorker, network: Network, seconds: int
) -> None:
    """A second is no loss; after a minute the others have gone on, and the member comes back. It reaches Redis."""
    hosts = [network.add_host() for _ in range(3)]
    workers = [start_on(start_worker, host) for host in hosts]
    job = group_job("job", 3, epochs=150) if seconds == 1 else group_job("job", {"min": 2, "max": 3}, epochs=3000)
    client.enqueue(job)
    members = until_formed(client, "job", 3)
    lost = hosts[workers.index(named(workers, members[2]))]
    lost.cut()
    began = time.time()
    time.sleep(seconds)  # what is tried here is a time
    lost.mend()
    if seconds > 1:
        changed = until(client, "job", lambda event: isinstance(event, GroupChanged) and event.left == (members[2],))
        print(f"the others went on after {changed.ts - began:.1f} s")
        until_formed(client, "job", 3)
        client.cancel("job")
        assert wait_for(client, "job").status == "cancelled"
        return
    events = assert_ended_well(client, connection, workers)
    assert [event for event in events if isinstance(event, GroupChanged) and event.left] == []
