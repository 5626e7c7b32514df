"""Lua scripts: read from `scripts/`, run by name, their answers validated."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from redis import Redis
from redis.exceptions import ResponseError

SCRIPTS: Final = Path(__file__).parent / "scripts"
TEXT = TypeAdapter(str)
"""An answer of one word; Redis sends bytes, which become text."""

T = TypeVar("T")


def run_script(
    connection: Redis, name: str, answer: TypeAdapter[T], *, keys: Sequence[str | bytes],
    args: Sequence[str | bytes | float],
) -> T:  # fmt: skip
    """Run the script of this name, such as `fencing/claim`.

    Raises:
        redis.exceptions.RedisError: Redis did not answer; or what the script read is none of ours, which is an error of
            the data, like a key of a wrong type.
    """
    found = connection.register_script(script_source(name))(keys=list(keys), args=list(args))
    try:
        return answer.validate_python(found)
    except ValidationError as error:
        raise ResponseError(f"WRONGTYPE {name} read what nobody of ours wrote: {error.error_count()} parts") from error


@cache
def script_source(name: str) -> str:
    """Return a script, after the functions that all scripts share."""
    paths = (*sorted((SCRIPTS / "shared").glob("*.lua")), SCRIPTS / f"{name}.lua")
    return "".join(path.read_text() for path in paths)
