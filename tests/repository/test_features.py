"""A feature is deleted by deleting its folder and its two lines in the list; a slow test then runs a job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.files.trees import copy_packages, delete_feature, names_of_features

PROGRAM = """
import pkgutil
from importlib import import_module
import worker
from worker.features.entries import FEATURES
for module in pkgutil.walk_packages(worker.__path__, "worker."):
    if not module.name.startswith("worker.features.") and not module.name.endswith("__main__"):
        import_module(module.name)
print(len(FEATURES))
"""


@pytest.mark.parametrize("name", names_of_features())
def test_nothing_else_needs_a_feature(name: str, tmp_path: Path) -> None:
    """Every other module of the worker is imported without its folder."""
    tree = copy_packages(tmp_path)
    delete_feature(tree, name)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) == len(names_of_features()) - 1
