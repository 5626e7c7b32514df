"""Lua scripts: read from `scripts/`, run by name, their answers validated."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter
from redis import Redis

SCRIPTS: Final = Path(__file__).parent / "scripts"
TEXT = TypeAdapter(str)
"""An answer of one word; Redis sends bytes, which become text."""

T = TypeVar("T")


def run_script(
    connection: Redis, name: str, answer: TypeAdapter[T], *, keys: Sequence[str | bytes],
    args: Sequence[str | bytes | float],
) -> T:  # fmt: skip
    """Run the script of this name, such as `fencing/claim`; raises `redis.exceptions.RedisError`."""
    return answer.validate_python(connection.register_script(script_source(name))(keys=list(keys), args=list(args)))


@cache
def script_source(name: str) -> str:
    """Return a script behind the functions that all scripts share."""
    paths = (*sorted((SCRIPTS / "shared").glob("*.lua")), SCRIPTS / f"{name}.lua")
    return "".join(path.read_text() for path in paths)
