"""What each rank trains on, and who makes a group slower."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from preflight.contract.spec import TrainSpec
from training.data.batches import EpochOrder
from training.data.class_balance import BalancedPasses
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import open_dataset
from training.data.split import split
from training.distributed.measuring import MeasuredRanks, quicker, slow_members
from training.distributed.ranks import divide
from training.group import Seat

SPEC = TrainSpec(dataset="digits", model="cnn", epochs=2, batch_size=50)


def ranks(count: int) -> list[MeasuredRanks]:
    names = [f"worker-{number}" for number in range(count)]
    return [
        MeasuredRanks(
            rank=rank, names=names, batch_size=50, on_finish=lambda: None, measures=False, wanted=None,
            memory=HashStore(),
        )
        for rank in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_ranks_see_each_sample_once_an_epoch(digits_store: DatasetInfo, count: int) -> None:
    """Together they have the batches of a training alone, in its order."""
    parts = split(SPEC, digits_store)
    alone = [samples for _, samples in EpochOrder(SPEC.seed, SPEC.batch_size, parts)]
    orders = [EpochOrder(SPEC.seed, SPEC.batch_size, parts, rank) for rank in ranks(count)]
    shared = [torch.cat([share for _, share in shares]) for shares in zip(*orders, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(alone, shared, strict=True))
    seen = Counter(int(number) for batch in shared for number in batch)
    assert len(seen) == parts.steps * SPEC.batch_size
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("count", [2, 3])
def test_balanced_draws_are_shared_as_well(digits_store: DatasetInfo, count: int) -> None:
    """Together the ranks have the draws of a training alone, in its order."""
    spec = replace(SPEC, sampler="balanced")
    parts, labels = split(spec, digits_store), open_dataset(digits_store.path).train_labels
    passes = [BalancedPasses(spec, digits_store, labels) for _ in range(count + 1)]
    alone = [draws for _, draws in EpochOrder(spec.seed, spec.batch_size, parts, balanced=passes[0])]
    orders = [
        EpochOrder(spec.seed, spec.batch_size, parts, rank, own)
        for rank, own in zip(ranks(count), passes[1:], strict=True)
    ]
    shared = [torch.cat([share for _, share in shares]) for shares in zip(*orders, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(alone, shared, strict=True))


@pytest.mark.parametrize("count", [2, 3])
def test_losses_of_the_shares_average_to_that_of_the_batch(count: int) -> None:
    losses = torch.rand(50)
    scaled = [rank.share_of(losses).sum() / rank.divisor(0) for rank in ranks(count)]
    torch.testing.assert_close(torch.stack(scaled).mean(), losses.mean())


@given(st.lists(st.floats(0, 1e6), max_size=20), st.integers(1, 5))
def test_work_is_divided_so_that_no_rank_waits_for_long(costs: list[float], count: int) -> None:
    """The longest has at most a mean share and one piece more than the least busy one."""
    owners = divide(costs, count)
    loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(count)]
    assert max(loads) - min(loads) <= max(costs, default=0.0) * (1 + 1e-9)


def test_a_member_at_a_quarter_of_the_speed_is_let_go() -> None:
    assert slow_members({"leader": 100.0, "quick": 90.0, "slow": 25.0}, "leader") == ["slow"]
    assert slow_members({"leader": 100.0, "other": 49.0}, "leader") == ["other"]
    assert slow_members({"leader": 100.0, "other": 51.0}, "leader") == []
    assert slow_members({"leader": 25.0, "quick": 100.0}, "leader") == []


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=6))
def test_no_other_choice_of_members_is_faster(speeds: list[float]) -> None:
    by_name = {f"worker-{number}": speed for number, speed in enumerate(speeds)}
    slow = slow_members(by_name, "worker-0")
    kept = [speed for name, speed in by_name.items() if name not in slow]
    others = sorted(speeds[1:], reverse=True)
    best = max((count + 1) * min([speeds[0], *others[:count]]) for count in range(len(speeds)))
    assert len(kept) * min(kept) == pytest.approx(best)


def test_bfloat16_is_taken_where_it_is_clearly_quicker() -> None:
    assert quicker({"float32": 1.0, "bfloat16": 0.9}) == "bfloat16"
    assert quicker({"float32": 1.0, "bfloat16": 0.99}) == "float32"
    assert quicker({"bfloat16": 1.0}) == "bfloat16"


def test_a_seat_is_checked() -> None:
    seat = Seat(name="a", leader=True, address="127.0.0.1", secret="x" * 16, most=2)
    with pytest.raises(ValueError, match="least is 3, but most is 2"):
        replace(seat, least=3)
    with pytest.raises(ValueError, match="the leader's seat has no endpoint"):
        replace(seat, leader=False)
    with pytest.raises(ValueError, match="awaited is 3, but most is 2"):
        replace(seat, awaited=3)
