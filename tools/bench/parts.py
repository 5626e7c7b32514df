"""Benchmarks of several parts: run the named ones, or all, each under a heading and with its seconds."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Options = TypeVar("Options")
Result = TypeVar("Result")


def add_parts(parser: argparse.ArgumentParser, parts: Mapping[str, object]) -> None:
    """Let `parser` take names of parts."""
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)}; all by default")


def require_known(parser: argparse.ArgumentParser, named: Sequence[str], parts: Mapping[str, object]) -> None:
    """Exit with 2 for an unknown part."""
    unknown = [part for part in named if part not in parts]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")


def run_parts(parts: Mapping[str, Callable[[Options], Result]], named: Sequence[str], asked: Options) -> list[Result]:
    """Run the parts and return their results."""
    results = []
    for part in named or parts:
        began = time.monotonic()
        print(f"\n## {part}\n", flush=True)
        results.append(parts[part](asked))
        print(f"\n({part} took {time.monotonic() - began:.0f} s)", flush=True)
    return results
