"""Data sets of a queue's workers, as the workers publish them in Redis."""

import time
from typing import TYPE_CHECKING, Final

from preflight.contract.registry import DATASETS, find, nearest, require
from preflight.errors import InvalidConfig
from preflight.packages import is_worker_installed
from preflight.redis import keys

if TYPE_CHECKING:
    from redis import Redis

DAY: Final = 86_400
"""Seconds for which a name counts after a worker published it."""
MOST: Final = 5_000
LONGEST: Final = 128
"""Most bytes of a name."""
LISTED: Final = 30
"""Most names that an error lists."""


def read_datasets(connection: "Redis", queue: str) -> frozenset[str]:
    """Return the names, for imported data also with each version; none where no worker has published any.

    Raises:
        redis.exceptions.RedisError: Redis did not answer, or this user may not read them.
    """
    key = keys.datasets(queue)
    if not 0 < connection.hlen(key) <= MOST:
        return frozenset()
    oldest = time.time() - DAY
    found = connection.hgetall(key)
    return frozenset(
        name for name, said in ((_text(name), _text(said)) for name, said in found.items())
        if len(name) <= LONGEST and said.isascii() and said.isdigit() and len(said) < 12 and int(said) > oldest
    )  # fmt: skip


def _text(value: object) -> str:
    return value.decode("ascii", errors="replace") if isinstance(value, bytes) else str(value)


def require_known(name: str, published: frozenset[str]) -> None:
    """Raise `InvalidConfig` for a data set that is not registered here and that no worker has.

    Where no worker has published any, the worker that takes the job decides, unless one is installed here.
    """
    if find(DATASETS, name) is not None or name in published:
        return
    if published:
        known = sorted(published)
        listed = ", ".join(known[:LISTED]) + (", ..." if len(known) > LISTED else "")
        raise InvalidConfig(
            f"dataset {name!r} is not known{nearest(name, known)}; the workers have {listed}", field="dataset"
        )
    if is_worker_installed():
        require(DATASETS, "dataset", name)
