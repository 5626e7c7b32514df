"""DataLoader: built from the plan."""

import pytest
from torch.utils.data import SequentialSampler, TensorDataset

from preflight.contract.plan import Device, Plan
from training.data.loader import build_loader


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_loader_has_the_workers_of_the_plan(device: Device) -> None:
    """Workers are spawned once for the whole training, and prefetch; batches for a GPU are page-locked."""
    plan = Plan(threads=2, micro_batch=64, loader_workers=2, prefetch_factor=4, device=device)
    dataset = TensorDataset()
    loader = build_loader(dataset, SequentialSampler(range(4)), plan)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (2, True, 4)
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert (loader.pin_memory, loader.batch_size) == (device == "cuda", None)
