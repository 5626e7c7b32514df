"""Groups that train together: real agents and ranks on loopback addresses."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from support.groups.seats import Sitting, Table
from support.worker.plain_model import PLAIN_MODEL
from support.worker.python_path import importing
from torch import Tensor

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildFailed, ChildKilled, Diverged, GroupShort, InvalidConfig
from training.artifacts.model_dir import MANIFEST, MODEL
from training.checkpoints.files import checkpoint_files
from training.data.dataset_info import DatasetInfo
from training.loop import child as training_child
from training.loop.child import TrainingRequest
from training.process.fork_server.client import ForkServer
from training.process.runner import run_child

SPEC = TrainSpec(dataset="digits", model="cnn-valid", epochs=3, batch_size=64, seed=3)
PLAIN = replace(SPEC, model="plain", deterministic=True, epochs=1)
PLAN = Plan(threads=1, micro_batch=64, eval_batch=100)
LONG = replace(SPEC, epochs=5000)
"""Long enough to be disturbed on any machine; the test ends it."""


ENVIRONMENT = dict(os.environ)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Yield a fork server, as a worker has one."""
    server = ForkServer(ENVIRONMENT, ["training.distributed.rank", "training.loop.trainer"])
    server.start()
    yield server
    server.stop()


@pytest.fixture
def table(tmp_path: Path, digits_store: DatasetInfo, server: ForkServer) -> Iterator[Table]:
    """Yield a table for two; its agents end with the test."""
    table = Table(
        directory=tmp_path, store=digits_store, spec=SPEC, plan=PLAN, awaited=2, server=server, environment=ENVIRONMENT
    )
    with table.stack:
        yield table


def weights(table: Table) -> dict[str, Tensor]:
    return load_file(table.directory / "model" / MODEL)


def train_together(table: Table, members: int = 1) -> dict[str, Tensor]:
    """Train with a leader and members to the end; return the weights."""
    leader, *others = seated(table, members)
    leader.told("done")
    for member in others:
        member.told("done")
    return weights(table)


def seated(table: Table, members: int = 1) -> list[Sitting]:
    """Start a leader and members, and wait until they have met."""
    leader = table.lead()
    everyone = [leader, *(table.join(number) for number in range(1, members + 1))]
    leader.until(lambda: any(len(names(group)) == members + 1 for group in leader.of("group")))
    return everyone


def names(group: object) -> list[str]:
    match group:
        case {"members": list(members)}:
            return [str(name) for name in members]
    raise AssertionError(group)


def rank_of(sitting: Sitting) -> psutil.Process:
    """Return the process of an agent's rank."""
    assert sitting.child.pid is not None
    (rank,) = psutil.Process(sitting.child.pid).children()
    return rank


def at_work(leader: Sitting) -> None:
    """Wait until a group trains and has made a checkpoint."""
    leader.told("checkpoint")
    leader.told("progress", len(leader.of("progress")) + 1)


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


@pytest.mark.parametrize(("members", "spec"), [
    (1, replace(PLAIN, optimizer="muon", class_weights="balanced", metric="macro_f1")),
    (3, replace(PLAIN, sampler="balanced", optimizer="muon")),
])  # fmt: skip
@pytest.mark.slow  # test_ranks.py has the gradients
def test_a_group_learns_what_one_learns_alone(
    table: Table, tmp_path: Path, install_package: Callable[..., None], members: int, spec: TrainSpec
) -> None:
    """Without batch norms, its weights differ by rounding alone: each sample counts once, and as much."""
    install_package("preflight.models", {"plain": "plain:plain"}, "plain", PLAIN_MODEL)
    table.environment, table.server = importing(tmp_path / "site"), None
    alone = TrainingRequest(spec=spec, plan=PLAN, store=table.store.path, artifact=tmp_path / "alone", facts={})
    run_child(
        training_child.MODULE, training_child.REQUEST.dump_json(alone), tmp_path, table.environment, task="alone"
    )  # fmt: skip
    table.spec, table.awaited, table.most, table.least = spec, members + 1, members + 1, members + 1
    together, expected = train_together(table, members), load_file(tmp_path / "alone" / MODEL)
    for name, value in expected.items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-5)
    scores = [
        json.loads((path / MANIFEST).read_text())["history"][0]["val_macro_f1"]
        for path in (table.directory / "model", tmp_path / "alone")
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.01)


@pytest.mark.slow
def test_deterministic_groups_repeat_themselves_to_the_bit(table: Table) -> None:
    """Undisturbed, after a member was killed and another one came, and after the leader was killed."""
    members = 2
    table.spec = replace(SPEC, epochs=6, deterministic=True)
    table.least = table.most = table.awaited = members + 1
    table.checkpoint_seconds = 0.1
    first = train_together(table, members)

    again = replace_table(table, "member killed")
    leader, member, *_ = seated(again, members)
    at_work(leader)
    os.kill(rank_of(member).pid, signal.SIGKILL)
    with pytest.raises(ChildKilled):
        member.told("done")
    assert not leader.of("done")
    newcomer = again.join(3)
    leader.told("done")
    assert newcomer.of("group")
    assert same(weights(again), first)

    once_more = replace_table(table, "leader killed")
    leader, *others = seated(once_more, members)
    at_work(leader)
    os.kill(rank_of(leader).pid, signal.SIGKILL)
    with pytest.raises(ChildKilled):
        leader.told("done")
    assert not leader.of("done")
    for other in others:
        with pytest.raises(ChildFailed):
            other.told("done")
    found = sorted((path for _, path in checkpoint_files(once_more.checkpoints.parent)), reverse=True)
    once_more.secret = "of the second attempt"  # noqa: S105 - of a test
    leader = once_more.lead(tuple(found))
    for number in range(1, members + 1):
        once_more.join(number)
    leader.told("done")
    assert leader.of("resumed")
    assert same(weights(once_more), first)


def replace_table(table: Table, name: str) -> Table:
    """Return a table for the same training in another place."""
    return Table(
        directory=table.directory / name, store=table.store, spec=table.spec, plan=table.plan, least=table.least,
        most=table.most, awaited=table.awaited, checkpoint_seconds=table.checkpoint_seconds, server=table.server,
        environment=table.environment,
        stack=table.stack,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_group_goes_on_without_a_member(table: Table, how: signal.Signals) -> None:
    """A member that is killed or hangs: the leader resumes its last checkpoint."""
    table.spec, table.checkpoint_seconds = LONG, 0.1
    leader, member = seated(table)
    at_work(leader)
    assert member.child.pid is not None
    processes = [psutil.Process(member.child.pid), rank_of(member)]
    for process in processes if how == signal.SIGSTOP else processes[:1]:
        process.send_signal(how)
    leader.until(lambda: names(leader.of("group")[-1]) == ["leader"])
    leader.told("resumed")
    for process in processes if how == signal.SIGSTOP else ():
        process.send_signal(signal.SIGKILL)
    leader.told("epoch", len(leader.of("epoch")) + 1)


@pytest.mark.slow
@pytest.mark.covers_children
def test_a_newcomer_joins(table: Table) -> None:
    """A group of one becomes one of two, and loses no step: the leader saves before it forms anew."""
    table.spec, table.awaited = LONG, 1
    leader = table.lead()
    leader.told("progress")
    member = table.join()
    leader.told("group", 2)
    assert [names(group) for group in leader.of("group")] == [["leader"], ["leader", "member-1"]]
    assert [names(group) for group in member.told("group")] == [["leader", "member-1"]]
    at_work(leader)
    steps = [record.payload["train_steps"] for record in leader.read() if record.kind == "progress"]
    assert steps == sorted(steps, key=lambda step: int(str(step)))


@pytest.mark.slow
def test_a_killed_agent_leaves_no_process(table: Table) -> None:
    table.spec, table.least = LONG, 2
    leader, member = seated(table)
    at_work(leader)
    processes = [rank_of(leader), rank_of(member)]
    assert leader.child.pid is not None
    os.kill(leader.child.pid, signal.SIGKILL)
    with pytest.raises(ChildKilled):
        leader.told("done")
    assert not leader.of("done")
    with pytest.raises(ChildFailed, match=r"the leader at .* cannot be reached"):
        member.told("done")
    gone, alive = psutil.wait_procs(processes, timeout=20)
    assert (len(gone), alive) == (2, [])


@pytest.mark.slow
def test_the_leaders_failures_end_as_those_of_a_training_alone(table: Table) -> None:
    """The warm-up of 20 epochs is short: the second one diverges."""
    table.least, table.spec = 2, replace(SPEC, epochs=20, learning_rate=100.0, optimizer="sgd", momentum=0.99)
    leader, _ = seated(table)
    with pytest.raises(Diverged, match="lower learning_rate"):
        leader.told("done")


@pytest.mark.slow
def test_a_stopped_leader_saves_and_says_so(table: Table) -> None:
    table.spec, table.least = LONG, 2
    leader, _ = seated(table)
    at_work(leader)
    before = len(checkpoint_files(table.checkpoints.parent))
    leader.child.ask_to_stop()
    leader.told("fail")
    assert leader.of("fail")[0]["reason"] == "child_stopped"
    assert before
    position = max(int(path.stem.partition("-")[2]) for _, path in checkpoint_files(table.checkpoints.parent))
    assert f"stopped after step {position} of" in str(leader.of("fail")[0]["message"])


def test_too_few_workers_are_said_so(table: Table) -> None:
    table.least, table.gather_seconds = 2, 2.0
    leader = table.lead()
    with pytest.raises(GroupShort, match="fewer than 2 workers came together within 2 s"):
        leader.told("done")


def test_more_ranks_than_shares_are_refused(table: Table) -> None:
    table.spec, table.most = replace(SPEC, batch_size=3), 2
    with pytest.raises(InvalidConfig, match="use at most 1 workers or a larger batch_size"):
        table.lead()


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.slow)])
def test_a_group_listens_on_its_address_alone(table: Table, address: str) -> None:
    """IPv4 and IPv6: no socket of agent or rank listens anywhere else."""
    table.spec, table.least = LONG, 2
    table.addresses = ("127.0.0.1", "127.0.0.2") if address == "127.0.0.1" else ("::1", "::1")
    everyone = seated(table)
    at_work(everyone[0])
    for sitting, own in zip(everyone, table.addresses, strict=True):
        assert sitting.child.pid is not None
        processes = [psutil.Process(sitting.child.pid), rank_of(sitting)]
        listening = [
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert set(listening) == {own}


def assert_speedup_is_that_of_the_group(measured: object) -> None:
    match measured:
        case {"alone_samples_per_s": float(alone), "group_samples_per_s": float(group), "speedup": float(speedup)}:
            assert speedup == pytest.approx(group / alone)
        case _:
            pytest.fail(str(measured))


@pytest.mark.slow
def test_the_group_is_measured_and_the_prediction_follows(table: Table) -> None:
    """Real steps alone and together, both precisions; the training begins afterwards as if nothing had been."""
    table.measure, table.least, table.spec = True, 2, replace(SPEC, epochs=1)
    leader, _ = seated(table)
    (measured,) = leader.told("group_measured")
    assert measured["wire"] in ("float32", "bfloat16")
    assert measured["slow"] == [] or measured["slow"] == ["member-1"]
    assert_speedup_is_that_of_the_group(measured)
    leader.told("done")
    measuring = weights(table)
    plain = replace_table(table, "plain")
    train_together(plain)
    if measured["wire"] == "float32":
        for name, value in weights(plain).items():
            torch.testing.assert_close(measuring[name], value)
