"""Copies of the packages, in which a test changes or deletes a file."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]


def copy_packages(tree: Path) -> Path:
    """Copy all packages into a directory, from where PYTHONPATH finds them; return it."""
    for package in ("client/preflight", "worker", "training", "calibration"):
        shutil.copytree(ROOT / package, tree / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def names_of_features() -> list[str]:
    return sorted(path.name for path in (ROOT / "worker" / "features").iterdir() if (path / "feature.py").is_file())


def delete_feature(tree: Path, name: str) -> None:
    """Delete the folder of a feature and its two lines in the list."""
    shutil.rmtree(tree / "worker" / "features" / name)
    listed = tree / "worker" / "features" / "entries.py"
    lines = listed.read_text().splitlines(keepends=True)
    left = [line for line in lines if f".{name}." not in line and not line.startswith(f"    {name.upper()},")]
    assert len(lines) - len(left) == 2
    listed.write_text("".join(left))
