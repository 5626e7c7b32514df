"""Tensors of a checkpoint: taken from a training step and restored into one."""

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from training.checkpoints.format import InvalidCheckpoint
from training.step.train_step import TrainStep
from training.system.safetensors_file import TensorView

DTYPES: Final = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Names of number types in safetensors."""


def changing_tensors(step: TrainStep) -> Iterator[tuple[str, Tensor]]:
    """Yield, with its name, each tensor that a training step may change."""
    for name, value in step.model.state_dict().items():
        yield f"model/{name}", value
    for number, parameter in enumerate(step.parameters):
        for key, value in step.optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                yield f"optimizer/{number}/{key}", value
    yield "random", torch.get_rng_state()
    if step.device.type == "cuda":
        yield "random-cuda", torch.cuda.get_rng_state()


def is_finite(tensor: Tensor) -> bool:
    """Whether there is no NaN and no infinity in it, in one pass over its memory."""
    if not (tensor.is_floating_point() and tensor.numel()):
        return True
    return all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor))  # a NaN is both its ends


def tensor_view(tensor: Tensor) -> TensorView:
    """Return a view of a contiguous tensor as safetensors stores it; the memory is shared."""
    data = tensor.reshape(-1).view(torch.uint8).numpy().data
    return TensorView(DTYPES[tensor.dtype], tuple(tensor.shape), data, tensor.element_size())


class LiveTensors(Mapping[str, TensorView]):
    """Views of tensors that are made one at a time, as that of a channels_last tensor is a copy."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """View `tensors`, which must not change until they are written."""
        self._tensors = tensors

    def __getitem__(self, name: str) -> TensorView:
        """Return the view of a tensor."""
        return tensor_view(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)


def restore(step: TrainStep, tensors: Mapping[str, Tensor], *, best: bool) -> None:
    """Put the tensors of a checkpoint into `step`, with or without best weights; none of them when it raises.

    Raises:
        InvalidCheckpoint: they are not those of this model.
    """
    model, best_weights = _beneath("model/", tensors), _beneath("best/", tensors)
    wanted = _shapes(step.model.state_dict())
    if _shapes(model) != wanted or _shapes(best_weights) != (wanted if best else {}):
        raise InvalidCheckpoint(f"its weights are not those of model {step.spec.model!r}")
    states = _states(step, _beneath("optimizer/", tensors))
    try:
        torch.set_rng_state(tensors["random"])
        if step.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random-cuda"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise InvalidCheckpoint("its random state is none of this version of torch") from error
    step.model.load_state_dict(model)
    step.optimizer.state.clear()
    for parameter, state in zip(step.parameters, states, strict=True):
        if state:
            step.optimizer.state[parameter] = state
    step.best = {name: value.clone() for name, value in best_weights.items()}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def _beneath(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _states(step: TrainStep, saved: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the optimizer's state of each parameter, in that parameter's memory layout."""
    states: list[dict[str, Tensor]] = [{} for _ in step.parameters]
    for name, value in saved.items():
        number, _, key = name.partition("/")
        if not number.isdecimal() or int(number) >= len(states):
            raise InvalidCheckpoint(f"the optimizer has no parameter {number}")
        parameter = step.parameters[int(number)]
        if value.shape not in (parameter.shape, torch.Size([])):
            raise InvalidCheckpoint(f"the optimizer's {key} of parameter {number} has another shape than the parameter")
        same = value.shape == parameter.shape
        like = parameter if same else value
        home = torch.empty_like(like, dtype=value.dtype, device=parameter.device)
        states[int(number)][key] = home.detach().copy_(value)
    return states
