"""A signal handler that raises is heard, whatever runs."""

import signal
import sys
import time
import weakref
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from preflight.cli.interrupts import raised_safely

MODULES = {
    "set_name": """
        import signal

        class Field:
            def __set_name__(self, owner, name):
                signal.raise_signal(signal.SIGUSR1)

        class Owner:
            field = Field()
    """,
    "callback": """
        import signal
        import weakref

        class Lock:
            pass

        lock = Lock()
        reference = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGUSR1))
        del lock
    """,
}
"""Modules that are interrupted where Python replaces or ignores an exception."""


class Interrupted(BaseException):
    """Raised by the handler."""


class File:
    """Interrupted by its destructor."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """A handler of SIGUSR1 that raises `Interrupted`."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    former = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)}
    signal.signal(signal.SIGUSR1, raised_safely(interrupt))
    yield
    for number, before in former.items():
        signal.signal(number, before)


@pytest.mark.parametrize("place", MODULES)
def test_an_import_ends_before_the_interrupt(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is the interrupt lost nor the module."""
    name = f"interrupted_in_{place}"
    (tmp_path / f"{name}.py").write_text(dedent(MODULES[place]))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Interrupted):
        import_module(name)
        time.sleep(60)
    assert name in sys.modules


def test_a_destructor_ends_before_the_interrupt() -> None:
    """Python ignores what a destructor raises."""
    with pytest.raises(Interrupted):
        File()
        time.sleep(60)


def test_a_finalizer_ends_before_the_interrupt() -> None:
    """Python ignores what a weak reference's callback raises."""
    owner = Interrupted()
    weakref.finalize(owner, signal.raise_signal, signal.SIGUSR1)
    with pytest.raises(Interrupted):
        del owner
        time.sleep(60)


def test_elsewhere_it_interrupts_at_once() -> None:
    """Nothing is waited for."""
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGUSR1)
