"""Rules that every Lua script keeps: Redis does not undo what a script wrote before it failed."""

import re
from pathlib import Path

import pytest

from preflight.redis.lua import SCRIPTS

PUSHING = [
    path for path in SCRIPTS.glob("*/*.lua")
    if path.parent.name != "shared" and re.search(r"PUSH'|enqueue_waiting\(", path.read_text())
]  # fmt: skip


@pytest.mark.parametrize("script", PUSHING, ids=lambda path: path.stem)
def test_a_queue_of_another_type_stops_a_script_before_it_writes(script: Path) -> None:
    """A job whose id was removed elsewhere, and then cannot be pushed, would be lost."""
    text = script.read_text()
    check = re.search(r"call\('(?:LLEN'|RPUSH', KEYS)|'list'", text)
    write = re.search(r"call\([^)]*(?:PUSH'|'HSET'|'LREM'|'ZREM', KEYS)|enqueue_waiting\(", text)
    assert write is not None
    assert check is not None
    assert check.start() <= write.start()
