"""gloo bound to one address: `torch.distributed` would bind it to whatever the host's name resolves to."""

import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Store  # torch.distributed does not export them to a type checker

NAME: Final = "bound-gloo"
"""Name of the backend in `torch.distributed`."""


class _Device(Protocol):
    """A socket address of gloo."""


class _GlooOptions(Protocol):
    """`ProcessGroupGloo._Options`, which the stubs of torch 2.15 leave out."""

    _devices: list[_Device]
    _timeout: timedelta


class _Gloo(Protocol):
    """`ProcessGroupGloo` with the constructor that takes options, which the stubs leave out, too."""

    @property
    def _Options(self) -> Callable[[], _GlooOptions]: ...  # noqa: N802 - torch's name

    def create_device(self, hostname: str) -> _Device: ...

    def __call__(self, store: Store, rank: int, size: int, options: _GlooOptions) -> Backend: ...


def register(address: str) -> None:
    """Make the backend `NAME` known, which listens on a free port of `address` and nowhere else."""
    gloo: _Gloo = importlib.import_module("torch.distributed").ProcessGroupGloo

    def create(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._timeout = timeout
        return gloo(store, rank, size, options)

    dist.Backend.register_backend(NAME, create, devices=["cpu"])
