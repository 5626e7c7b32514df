"""Imports of the fork server, which its children share."""

import ctypes
import gc
import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


class Imports:
    """The modules that a fork server has imported."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Import `modules`, those that are installed."""
        gc.disable()  # it would take a tenth of the time, and the same again for a last collection
        for module in modules:
            with suppress(ModuleNotFoundError):
                importlib.import_module(module)
        gc.freeze()  # keep the collector off these objects, which forks share
        gc.enable()
        with suppress(AttributeError):  # musl has none
            ctypes.CDLL(None).malloc_trim(0)
        packages = {name.partition(".")[0] for name in (*modules, "torch", "numpy")}
        files = (getattr(sys.modules.get(package), "__file__", None) for package in packages)
        self._files = [ImportedFile(file, _stamp(file)) for file in files if isinstance(file, str)]

    def are_current(self) -> bool:
        """Whether the packages on disk are still those that were imported, and not upgraded ones."""
        return not any(file.has_changed() for file in self._files)


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """A file as it was when it was imported."""

    path: str
    stamp: tuple[int, int] | None
    """Inode and time of modification, ns; None: it is not there."""

    def has_changed(self) -> bool:
        """Whether the file has changed since."""
        return _stamp(self.path) != self.stamp


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def reseed() -> None:
    """Seed the global generators of NumPy and torch from the system, as a fresh interpreter does; Python's does so."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()
