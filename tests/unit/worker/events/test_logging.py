"""Logs: one line per record, without secrets."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import RedisError

from worker.events.logging import configure

NASTY = "a=b\n\x1b[31mred\r\u2028\u0085\x00\ud800 'quote\""
STYLES: tuple[Literal["json", "text"], ...] = ("json", "text")
HIDDEN = "hunter2 ü/\n"


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.basicConfig(handlers=handlers, level=level, force=True)
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def logged(style: Literal["auto", "json", "text"], name: str, **fields: object) -> str:
    stream = io.StringIO()
    configure(style, "info", stream, secrets=[HIDDEN])
    structlog.get_logger("preflight").info(name, **fields)
    return stream.getvalue()


def assert_one_line(text: str) -> None:
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
    assert text.isascii()


@pytest.mark.parametrize("style", ["json", "auto"])
def test_json_has_event_message_and_level(style: Literal["json", "auto"]) -> None:
    """As Railway reads it; `auto` is JSON where the stream is no terminal."""
    record = json.loads(logged(style, "epoch_done", epoch=1, loss=0.5, job_id="j"))
    assert (record["event"], record["level"], record["epoch"], record["job_id"]) == ("epoch_done", "info", 1, "j")
    assert record["message"] == "Epoch done."
    assert record["ts"].endswith("Z")


def test_a_terminal_gets_key_value() -> None:
    """Plain values are unquoted; name and sentence come first."""
    line = logged("text", "epoch_done", message="it took 4 s", epoch=1, loss=0.1234, note="two words", job_id="j")
    assert 'event=epoch_done message="It took 4 s." job_id=j epoch=1 loss=0.1234 note="two words"' in line


def test_a_time_of_day_is_not_rounded() -> None:
    assert "first_step_at=1763769600.25" in logged("text", "progress", first_step_at=1763769600.25)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
surrogates = st.text(st.characters(categories=("Cs", "Cc", "Zl", "Zp", "L")))
values = st.recursive(
    plain | surrogates,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary() | st.integers(), inner) | st.tuples(inner),
    max_leaves=8,
)


@given(name=st.text() | surrogates, value=values)
def test_one_record_is_one_line(name: str, value: object) -> None:
    """No name or value, however nested, breaks a line or fakes a pair; JSON stays valid."""
    for style in STYLES:
        text = logged(style, "event", **{f"x{name}": value, "nasty": NASTY, NASTY: "nasty"})
        assert_one_line(text)
        if style == "json":
            assert json.loads(text, parse_constant=pytest.fail)["nasty"] == NASTY
        else:
            assert text.count(" nasty=") == 1


def test_a_long_value_is_truncated() -> None:
    for style in STYLES:
        text = logged(style, "event", value="begin" + "x" * 1_000_000 + "end", raw=b"\xff" * 1_000_000)
        assert_one_line(text)
        assert len(text) < 100_000
        assert "begin" in text
        assert "end" in text


def test_values_that_json_does_not_know_are_written() -> None:
    """A recursive one down to the maximum depth, an exception as a string."""
    knot: list[object] = []
    knot.append(knot)
    assert_one_line(logged("json", "x", knot=knot))
    assert json.loads(logged("json", "x", path=ValueError("no")))["path"] == "no"


def test_records_of_other_libraries_have_the_same_format(stream: io.StringIO) -> None:
    configure("json", "info", stream)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger("rq.worker").exception("it %s", "broke")
    record = json.loads(stream.getvalue())
    assert (record["event"], record["message"]) == ("rq.worker", "it broke")
    assert "first\nsecond" in record["exception"]


def test_the_level_is_a_threshold(stream: io.StringIO) -> None:
    configure("json", "warning", stream)
    structlog.get_logger("preflight").info("quiet")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("style", STYLES)
def test_no_record_shows_a_secret(style: Literal["json", "text"], stream: io.StringIO) -> None:
    """Not in a name, value, nested value, exception, bytes or traceback, of any library."""
    configure(style, "info", stream, secrets=[HIDDEN])
    log = structlog.get_logger("preflight")
    log.info(HIDDEN, **{HIDDEN: HIDDEN, "nested": {HIDDEN: [HIDDEN, {"x": (HIDDEN,)}]}, "raw": HIDDEN.encode()})
    log.info("quoted", quoted=repr(HIDDEN), error=ValueError(HIDDEN), ascii=ascii([HIDDEN]), path=Path(HIDDEN))
    other = logging.getLogger("redis")
    other.warning("%s and %r", HIDDEN, {"password": HIDDEN})
    try:
        raise ValueError(HIDDEN)
    except ValueError:
        other.exception("no")
        log.exception("no")
    assert "hunter2" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 5


@given(password=st.text("abc%/@:", min_size=1))
def test_no_record_shows_the_password_of_a_url(password: str) -> None:
    for style in STYLES:
        text = logged(style, "x", url=f"redis://user:{password.replace('/', '%2F')}@host:1/0 answered")
        assert ":***@host" in text


def test_errors_of_redis_do_not_show_the_password(redis_url: str, stream: io.StringIO) -> None:
    configure("json", "debug", stream, secrets=["hunter2"])
    url = redis_url.replace("unix://", "unix://user:hunter2@")
    try:
        Redis.from_url(url).ping()
    except RedisError:
        logging.getLogger("rq.worker").exception("could not connect to %s", url)
    assert "could not connect" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_a_record_that_cannot_be_formatted_is_reported(stream: io.StringIO) -> None:
    """By its origin, without its arguments and a traceback."""
    configure("json", "info", stream, secrets=["hunter2"])
    logging.getLogger("rq.worker").info("%d", "hunter2")
    structlog.get_logger("preflight").info("x", huge=10**5000)
    first, second = (json.loads(line)["message"] for line in stream.getvalue().splitlines())
    assert "log_record_unreadable" in first
    assert "rq.worker" in first
    assert "log_record_unreadable" in second
    assert "hunter2" not in stream.getvalue()


PROGRAM = """
import sys, structlog
from worker.events.logging import configure
configure("json", "info", sys.stdout)
log = structlog.get_logger("preflight")
for number in range(10_000):
    log.info("still here", number=number, text="x" * 100)
print("done", file=sys.stderr)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("closed", ["reader", "stream", "descriptor", "before"])
def test_a_closed_stream_does_not_stop_the_process(closed: str) -> None:
    """Reader, stream or descriptor closed, before or while it runs: no traceback, exit code 0."""
    program = PROGRAM
    if closed in ("stream", "descriptor"):
        closing = {"stream": "sys.stdout.close()", "descriptor": "import os; os.close(1)"}[closed]
        program = PROGRAM.replace("for number", f"{closing}\nfor number")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-P", "-c", program]
    if closed == "before":
        command = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    # Whatever is opened after descriptor 1 was closed gets its number, as a file of coverage's does.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        command, stdout=write if closed == "reader" else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "done\n")
