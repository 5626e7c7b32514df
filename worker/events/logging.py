"""Structured logs: one line per record, secrets scrubbed, for this program, RQ and redis-py.

key=value at a terminal, JSON in a container; in both, `event` is the record's name and `message` a sentence.
"""

import errno
import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Final, Literal, TextIO

import structlog

from preflight.config.secrets import encoded_forms, redact
from preflight.events.sentences import as_sentence

PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:/@+*%()\[\]-]+")
"""A value that needs no quotes."""
NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
"""Name of a record of this program."""
FIRST: Final = ("ts", "level", "event", "message", "job_id", "attempt")
MAX_TEXT_LENGTH: Final = 16_000
"""Characters; of a longer text the beginning and the end are kept."""
MAX_DEPTH: Final = 8
"""Levels of nesting in a value; deeper ones are rendered as text."""
CLOSED_ERRORS: Final = (errno.EPIPE, errno.EBADF, errno.EIO)
"""The stream is closed for good."""

Fields = MutableMapping[str, object]
Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]


def configure(
    style: Literal["auto", "json", "text"], level: str, stream: TextIO | None, secrets: Sequence[str] = ()
) -> None:
    """Send all logs to `stream`.

    Args:
        style: `auto` is key=value at a terminal and JSON elsewhere.
        level: minimum level.
        stream: None, as in a process without standard streams, drops all records.
        secrets: scrubbed from every record.
    """
    text = style == "text" or (style == "auto" and stream is not None and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        name_and_sentence,
    ]
    handler = logging.NullHandler() if stream is None else LineHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                Redactor(secrets),
                render_text if text else render_json,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def name_and_sentence(logger: logging.Logger | None, method: str, fields: Fields) -> Fields:  # noqa: ARG001 - structlog's signature
    """Return the record with its name as `event` and a sentence as `message`.

    A record of another library is named after its logger.
    """
    name = str(fields.get("event", ""))
    if NAME.fullmatch(name):
        return {**fields, "event": name, "message": as_sentence(str(fields.get("message") or name.replace("_", " ")))}
    record = fields.get("_record")
    origin = record.name if isinstance(record, logging.LogRecord) else "log"
    return {**fields, "event": origin, "message": name}


class LineHandler(logging.StreamHandler[TextIO]):
    """Write lines; errors of the stream never reach the caller."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line; for one that cannot be formatted, its origin."""
        try:
            return super().format(record)
        except Exception as error:
            fields = {
                "logger": record.name,
                "line": f"{record.pathname}:{record.lineno}",
                "error": type(error).__name__,
            }
            about = logging.makeLogRecord({"name": record.name, "levelno": logging.ERROR, "levelname": "ERROR"})
            about.msg = f"log_record_unreadable {fields}"
            return super().format(about)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the name and signature of logging
        """Drop the record; redirect a closed stream to /dev/null."""
        error = sys.exception()
        if isinstance(error, OSError) and error.errno in CLOSED_ERRORS:
            # Buffered data would be written at exit, and fail there.
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())
                os.close(null)


class Redactor:
    """Convert names and values to plain data without secrets."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._forms = encoded_forms(secrets)

    def __call__(self, logger: object, method: str, fields: Fields) -> Fields:  # noqa: ARG002 - structlog's signature
        """Return the record as plain data."""
        return {self._text(str(name)): self._plain(value, MAX_DEPTH) for name, value in fields.items()}

    def _plain(self, value: object, levels: int) -> Plain:
        match value:
            case None | bool() | int():
                return value
            case str():
                return self._text(value)
            case float():
                return value if math.isfinite(value) else str(value)  # JSON has no NaN
            case Mapping() if levels:
                return {self._text(str(name)): self._plain(inner, levels - 1) for name, inner in value.items()}
            case list() | tuple() if levels:
                return [self._plain(inner, levels - 1) for inner in value]
            case bytes():
                return self._text(value.decode(errors="backslashreplace"))
        return self._text(str(value))

    def _text(self, text: str) -> str:
        clean = redact(text, self._forms)
        if len(clean) <= MAX_TEXT_LENGTH:
            return clean
        half = MAX_TEXT_LENGTH // 2
        return f"{clean[:half]}... {len(clean) - MAX_TEXT_LENGTH} characters left out ...{clean[-half:]}"


def render_json(logger: object, method: str, fields: Fields) -> str:  # noqa: ARG001 - structlog's signature
    """Return the record as one line of ASCII JSON."""
    return json.dumps(_ordered(fields))


def render_text(logger: object, method: str, fields: Fields) -> str:  # noqa: ARG001 - structlog's signature
    """Return the record as key=value pairs, quoted and escaped."""
    return " ".join(f"{_word(name)}={_word(value)}" for name, value in _ordered(fields).items())


def _ordered(fields: Mapping[str, object]) -> dict[str, object]:
    head = {name: fields[name] for name in FIRST if name in fields}
    return {**head, **{name: value for name, value in fields.items() if name not in head}}


def _word(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)
