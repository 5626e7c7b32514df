"""How benches print: Markdown tables, medians with ranges, bounds."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], form: str) -> str:
    """Return the median and the range of `values`."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def judged(reached: bool) -> str:
    """Return the word beside a bound."""
    return "reached" if reached else "missed"


def row(*cells: str) -> None:
    """Print a line of a Markdown table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def head(*names: str) -> None:
    """Print the head of a Markdown table."""
    row(*names)
    print("|" + "---|" * len(names), flush=True)
