"""Loading by processes: its configuration."""

from dataclasses import replace

import pytest

from training.config.plan import Plan
from training.data.loader import DataLoaderConfig


def test_a_plan_with_workers_has_them_persist_and_prefetch() -> None:
    """They begin as fresh interpreters, once for the whole training."""
    plan = Plan(threads=2, micro_batch=64, loader_workers=2, prefetch_factor=4)
    assert DataLoaderConfig.of(plan, 256) == DataLoaderConfig(
        batch_size=256, num_workers=2, persistent_workers=True, prefetch_factor=4, start="spawn"
    )


def test_a_plan_without_workers_sets_nothing_that_needs_one() -> None:
    """torch would refuse it."""
    config = DataLoaderConfig.of(Plan(threads=2, micro_batch=64), 64)
    assert (config.num_workers, config.persistent_workers, config.prefetch_factor) == (0, False, None)


def test_batches_for_a_gpu_are_page_locked() -> None:
    """On a CPU that would be a copy for nothing."""
    plan = Plan(threads=2, micro_batch=64, loader_workers=2)
    assert DataLoaderConfig.of(replace(plan, device="cuda"), 64).pin_memory
    assert not DataLoaderConfig.of(plan, 64).pin_memory


def test_prefetching_and_persistence_need_a_worker() -> None:
    """What torch says late and about its own names is said at once."""
    with pytest.raises(ValueError, match="need num_workers of at least 1"):
        DataLoaderConfig(batch_size=1, prefetch_factor=2)
    with pytest.raises(ValueError, match="need num_workers of at least 1"):
        DataLoaderConfig(batch_size=1, persistent_workers=True)
