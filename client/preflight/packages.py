"""The project's packages have names that applications use, too: `worker.py` for RQ, a folder `training/`.

Python takes the first that it finds: in the folder of the program that runs, then in those of PYTHONPATH, and only then
among what is installed.
"""

import json
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

NAMES: Final = ("worker", "training", "calibration")
WORKER: Final = "preflight-worker"
"""Name of the distribution that has them."""
ROOT: Final = Path(__file__).resolve().parent.parent
"""Folder in which `preflight` lies."""


def explain_hidden(names: Collection[str] = NAMES) -> str | None:
    """Return which file or folder Python would import for one of our packages, in one sentence; None: they are ours."""
    for name in names:
        found = _found(name)
        if found is not None and not is_own(found.parent):
            return explain(name, found, listed=not _is_programs_folder(found.parent))
    return None


def explain(name: str, found: Path, *, listed: bool) -> str:
    """Return the sentence on a file or folder in the way of our package; `listed`: PYTHONPATH has its folder."""
    folder = found.parent
    remedy = f"take {folder} out of PYTHONPATH" if listed else f"start the program in another folder than {folder}"
    return (
        f"{found} is in the way: Python imports it as '{name}', which is a package of preflight; rename it, or {remedy}"
    )


def is_own(folder: Path) -> bool:
    """Whether a folder has the worker's packages: next to `preflight`, in its checkout, or where it is installed."""
    return folder == ROOT or folder == _checkout() or folder in _installed()


def _checkout() -> Path | None:
    """Return the checkout whose folder `client` holds `preflight`; None: it is installed, or was copied elsewhere."""
    project = ROOT.parent / "pyproject.toml"
    is_checkout = ROOT.name == "client" and project.is_file() and f'name = "{WORKER}"' in project.read_text()
    return ROOT.parent if is_checkout else None


def _installed() -> tuple[Path, ...]:
    """Return the folders of the installed worker: its site-packages, and its checkout where that is used in place."""
    from importlib.metadata import PackageNotFoundError, distribution  # most commands do not ask for it

    try:
        worker = distribution(WORKER)
    except PackageNotFoundError:
        return ()
    origin = json.loads(worker.read_text("direct_url.json") or "{}")
    checkout = Path(unquote(urlsplit(str(origin.get("url", ""))).path))
    is_used_in_place = origin.get("dir_info", {}).get("editable", False)
    site = Path(str(worker.locate_file(""))).resolve()
    return (site, checkout.resolve()) if is_used_in_place else (site,)


def how_to_install(extra: str) -> str:
    """Return the command that installs the worker with one of its extras; no index has it."""
    return f"pip install ./client '.[{extra}]' in a checkout of preflight"


def is_worker_installed() -> bool:
    """Whether the worker is installed, or only the client."""
    return bool(_installed())


def _is_programs_folder(folder: Path) -> bool:
    """Whether a folder is that of the program that runs, which Python puts first; with -P it does not."""
    return not sys.flags.safe_path and bool(sys.path) and Path(sys.path[0]).resolve() == folder


def in_the_way(folder: Path) -> Path | None:
    """Return the file or folder in `folder` that programs started there would import for one of our packages."""
    if is_own(folder.resolve()):
        return None
    candidates = (path for name in NAMES for path in (folder / name, folder / f"{name}.py"))
    return next((path for path in candidates if path.is_file() or (path / "__init__.py").is_file()), None)


def require_own(names: Collection[str]) -> None:
    """Raise `ImportError` where Python would import something else for one of our packages."""
    hidden = explain_hidden(names)
    if hidden is not None:
        raise ImportError(hidden)


def _found(name: str) -> Path | None:
    """Return the package's folder, or the module's file, that Python finds; None: nothing."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module of that name was put into `sys.modules` by hand
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None
