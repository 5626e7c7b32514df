"""Jobs. `train` is the one function that a queue may name."""

from typing import NoReturn

from preflight.errors import InvalidConfig


def train(*arguments: object, **keywords: object) -> NoReturn:
    """Stand for the job of a `preflight worker`, which runs it without calling this; no other worker can.

    Raises:
        InvalidConfig: always.
    """
    raise InvalidConfig(
        f"worker.jobs.train was called with {len(arguments) + len(keywords)} arguments by something that is no "
        "preflight worker; start one with `preflight worker`"
    )
