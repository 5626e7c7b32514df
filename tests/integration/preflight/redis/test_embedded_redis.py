"""The embedded Redis."""

from pathlib import Path

import pytest

from preflight.redis.server.embedded import MAX_SOCKET_PATH, NoRedisServer, redis_server


def test_a_directory_too_long_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the bound and the remedy; nothing stays behind."""
    directory = tmp_path / ("x" * MAX_SOCKET_PATH)
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    with pytest.raises(NoRedisServer, match="has at most 107; set TMPDIR to a shorter directory"), redis_server():
        pass
    assert list(directory.iterdir()) == []
