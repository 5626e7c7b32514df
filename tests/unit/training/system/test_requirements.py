"""Whether each process compiles a package anew, told without importing it."""

import py_compile
import sys
from pathlib import Path

import pytest

from training.system.requirements import explain_missing_bytecode


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "uncompiled").mkdir()
    (tmp_path / "uncompiled" / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return "uncompiled"


def test_where_no_process_compiles_anew_nothing_is_said(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first import may write the bytecode, or it is there; a package that is absent or no Python has none."""
    assert explain_missing_bytecode(package) is None
    py_compile.compile(str(tmp_path / package / "__init__.py"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert explain_missing_bytecode(package) is None
    assert explain_missing_bytecode("there_is_no_such_package") is None
    assert explain_missing_bytecode("time") is None


def test_a_variable_that_forbids_bytecode_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is the command that makes up for it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    said = explain_missing_bytecode(package)
    assert said is not None
    assert f"there is no bytecode of {package} and PYTHONDONTWRITEBYTECODE keeps" in said
    assert "python -m compileall -q /" in said


def test_a_place_that_cannot_be_written_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a regular file no directory can be made."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(sys, "pycache_prefix", str(file))
    assert f"{file} cannot be written" in (explain_missing_bytecode(package) or "")
