"""The workload of a training, found at its first optimizer step: devices, ranks, parameters, batch, number of steps."""

import gc
import hashlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

TRAINERS: Final = {
    "transformers.trainer_callback": "TrainerState", "lightning.pytorch.trainer.trainer": "Trainer",
    "pytorch_lightning.trainer.trainer": "Trainer",
}  # fmt: skip
"""Module -> its class whose instance knows how many optimizer steps are planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Facts about a training, found at its first step."""

    parameters: int
    state_bytes: int
    """Bytes of parameters, gradients and the optimizer's state."""
    shapes: str
    """Digest of the shapes and types of the parameters."""
    batch: int | None
    """Samples that the data loader puts into a batch; None: there is none."""
    workers: int | None
    """Processes of the data loader."""
    total_steps: int | None
    """Optimizer steps of the whole training as Lightning or Transformers plan it; None: not known."""


def look_at(optimizer: "torch.optim.Optimizer") -> Workload:
    """Return the workload of a process that has just made its first step."""
    import torch

    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    shapes = ";".join(f"{tensor.dtype}{tuple(tensor.shape)}" for tensor in tensors)
    state = [value for values in optimizer.state.values() if isinstance(values, dict) for value in values.values()]
    sized = [*tensors, *(each.grad for each in tensors if each.grad is not None), *state]
    batch = workers = total = None
    trainers = [getattr(sys.modules.get(module), name, None) for module, name in TRAINERS.items()]
    for found in _living(torch.utils.data.DataLoader, *(each for each in trainers if isinstance(each, type))):
        if isinstance(found, torch.utils.data.DataLoader):
            if batch is None or (found.batch_size or 0) > batch:
                batch, workers = found.batch_size, found.num_workers
        else:
            total = _planned_steps(found) or total
    return Workload(
        parameters=sum(tensor.numel() for tensor in tensors),
        state_bytes=sum(each.numel() * each.element_size() for each in sized if isinstance(each, torch.Tensor)),
        shapes=hashlib.sha256(shapes.encode()).hexdigest()[:16],
        batch=batch,
        workers=workers,
        total_steps=total,
    )


def find_loader() -> "torch.utils.data.DataLoader[object] | None":
    """Return the data loader with the largest batches of this process; None: there is none."""
    import torch

    found = [each for each in _living(torch.utils.data.DataLoader) if isinstance(each, torch.utils.data.DataLoader)]
    return max(found, key=lambda each: each.batch_size or 0, default=None)


def explain_untunable(optimizer: "torch.optim.Optimizer", variables: Mapping[str, str]) -> str | None:
    """Return why nothing is raced in a process with these environment variables, a clause; None: it can be."""
    import torch

    devices = {tensor.device.type for group in optimizer.param_groups for tensor in group["params"]}
    if devices != {"cpu"}:
        return f"the model is on {' and '.join(sorted(devices - {'cpu'})) or 'no device'}"
    size = variables.get("WORLD_SIZE", "1")
    if size.isdecimal() and int(size) > 1:
        return f"it is one of {size} ranks"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = torch.distributed.get_world_size()
        if ranks > 1:
            return f"it is one of {ranks} ranks"
    return None


def is_compiled() -> bool:
    """Whether torch.compile has compiled something: a change of threads would compile it again.

    No public interface tells; where a version of torch has another one, this is False, and the race finds the first
    step after a change slower and goes back.
    """
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    try:
        return bool(counters and counters["stats"].get("unique_graphs", 0))
    except (AttributeError, KeyError, TypeError):
        return False


def _living(*classes: type) -> list[object]:
    """Return the living instances of classes, and of those derived from them.

    The collector finds who refers to their classes in a third of the time that a loop over all objects takes, of which
    Transformers makes half a million.
    """
    kinds = {each for kind in classes for each in _with_derived(kind)}
    return [each for each in gc.get_referrers(*kinds) if type(each) in kinds]


def _with_derived(kind: type) -> set[type]:
    derived: list[type] = type.__subclasses__(kind)
    return {kind, *(each for nearer in derived for each in _with_derived(nearer))}


def _planned_steps(trainer: object) -> int | None:
    """Return how many optimizer steps a trainer of Lightning or Transformers plans."""
    planned = getattr(trainer, "max_steps", None)  # of transformers.TrainerState, and of Lightning where it was set
    if not isinstance(planned, int) or planned <= 0:
        planned = None
        with suppress(Exception):  # Lightning computes it, and fails for a trainer that has no model yet
            planned = getattr(trainer, "estimated_stepping_batches", None)
    return int(planned) if isinstance(planned, int | float) and 0 < planned < float("inf") else None
