"""Loaded by each Python that `preflight run` starts, instead of the user's own sitecustomize, which it then runs.

Nothing else happens until the process imports torch. The tuner is loaded by path under a private name, so that packages
of the user's with names like ours stay theirs; it needs nothing but the standard library and torch.
"""

from __future__ import annotations  # a script around a training may start Pythons that do not know `X | None`

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

VARIABLE = "PREFLIGHT_RUN_DIRECTORY"
"""Environment variable that names the folder in which processes leave their findings for the command."""
PRIVATE = "_preflight_run"
"""Name of our package `preflight` in the user's processes."""


class _LoaderOfTorch(importlib.abc.Loader):
    """Loads torch as its own loader does, then the tuner."""

    def __init__(self, loader: importlib.abc.Loader, finder: _FinderOfTorch) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> object:
        """Return what torch's own loader has, for those who look at a spec and do not load it."""
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._finder.leave()
        self._loader.exec_module(module)
        try:
            _load_tuner(self._finder.folder)
        except Exception as error:  # a training never ends for its tuning
            _mark(self._finder.folder, f"failed-{os.getpid()}", f"{type(error).__name__}: {error}")


class _FinderOfTorch(importlib.abc.MetaPathFinder):
    """Waits for the first import of torch; Transformers and others look for its spec before they import it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def leave(self) -> None:
        """Find nothing any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _LoaderOfTorch(spec.loader, self)
                return spec
        return None


def _load_tuner(folder: str) -> None:
    package = ModuleType(PRIVATE)
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules[PRIVATE] = package
    _mark(folder, "torch", "")
    hook = importlib.import_module(f"{PRIVATE}.tuner.hook")
    from pathlib import Path

    hook.install(Path(folder), os.environ)


def _mark(folder: str, name: str, text: str) -> None:
    """Leave a file for the command; where its folder is gone, nobody waits for one."""
    try:
        with open(os.path.join(folder, name), "x") as file:
            file.write(text)
    except OSError:
        pass


def _run_own() -> None:
    """Import the sitecustomize that Python would have found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


def _begin() -> None:
    folder = os.environ.get(VARIABLE)
    if folder and os.path.isdir(folder):
        _mark(folder, "python", "")
        sys.meta_path.insert(0, _FinderOfTorch(folder))


if __name__ == "sitecustomize":  # and not imported for its names
    _begin()
    _run_own()
