"""How a bench of several parts is run: those that were named, or all, each under a heading and with what it took."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Asked = TypeVar("Asked")
Told = TypeVar("Told")


def add_parts(parser: argparse.ArgumentParser, parts: Mapping[str, object]) -> None:
    """Let `parser` take names of parts."""
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)}; all by default")


def see_that_known(parser: argparse.ArgumentParser, named: Sequence[str], parts: Mapping[str, object]) -> None:
    """Exit with 2 where a part is named that there is not."""
    unknown = [part for part in named if part not in parts]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")


def run_parts(parts: Mapping[str, Callable[[Asked], Told]], named: Sequence[str], asked: Asked) -> list[Told]:
    """Run the parts and return what each of them returned."""
    told = []
    for part in named or parts:
        began = time.monotonic()
        print(f"\n## {part}\n", flush=True)
        told.append(parts[part](asked))
        print(f"\n({part} took {time.monotonic() - began:.0f} s)", flush=True)
    return told
