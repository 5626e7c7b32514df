"""Processes that have torch imported before an order comes: how soon they answer, and what they hold.

    PYTHONPATH=tests python -m bench.standby [--rounds N]

From the order to the first line (the process is there, torch is imported), from there to the end of one forward and
backward pass on two threads, and the memory that is the process's own (Private_Dirty); all ways in turns. A step that
uses two threads after a fork shows that the fork is safe with OpenMP; a server that must not be forked is the proof
that an unsafe one would be seen.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pydantic import TypeAdapter

from bench.record import Record, judged, samples, start
from bench.standby.child import THREADS
from bench.standby.ways import UNSAFE, WAYS, Found

FOUND: Final = TypeAdapter(Found)
HANGS_AFTER: Final = 20.0
"""Seconds; the slowest way takes three."""


def attempt(way: str) -> Found | None:
    """Try a way once, in an interpreter of its own; None where it hangs. Nothing of it is left."""
    command = [sys.executable, "-m", "bench.standby.ways", way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as driver:
        try:
            told, _ = driver.communicate(timeout=HANGS_AFTER)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
    return FOUND.validate_json(told)


def measure(rounds: int, record: Record) -> None:
    """Try all ways in turns and print the table."""
    found: dict[str, list[Found | None]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in [*WAYS][:: 1 if number % 2 == 0 else -1]:
            found[way].append(attempt(way))
    record.head("a process with torch", "until its first line", "from there until a step is done",
        "its Private_Dirty then", "Private_Dirty of what waited", f"all steps with {THREADS} threads", "")  # fmt: skip
    for way, tries in found.items():
        done = [one for one in tries if one is not None]
        threaded = sum(one.threads >= THREADS for one in done)
        record.row(
            way,
            samples([1e3 * one.first_line for one in done], ".1f", " ms"),
            samples([1e3 * one.step for one in done], ".0f", " ms"),
            samples([one.private_dirty / 2**20 for one in done], ".0f", " MiB"),
            samples([one.waiting / 2**20 for one in done], ".0f", " MiB"),
            f"{threaded} of {rounds}",
            judged(threaded == rounds),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.standby", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds: int = parser.parse_args(arguments).rounds
    record = start("standby", f"python -m bench.standby --rounds {rounds}")
    measure(rounds, record)
    for way in UNSAFE:
        hung = attempt(way) is None
        record.note(f"Forked from {way}: the step {'hangs' if hung else 'ends'} (expected: hangs).")
    record.write()


if __name__ == "__main__":
    main()
