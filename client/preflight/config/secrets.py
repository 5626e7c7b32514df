"""Secrets: read from files, found in URLs, and redacted from text."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from preflight.errors import InvalidConfig

MAX_SECRET_BYTES: Final = 4096
"""Most bytes of a file with a secret."""
MASK: Final = "***"
URL_PASSWORD: Final = re.compile(r"(://[^/@:\s]*:)[^/\s]*@|([?&](?:ssl_)?password=)[^&\s]*")
"""A password in a URL, within any text."""
URL_WITHOUT_USER: Final = re.compile(r"([a-z]*://)?[A-Za-z0-9.-]*(:\d+)?(/\d*)?")


def url_passwords(url: str) -> Sequence[str]:
    """Return the passwords of a URL, from its authority and its query, encoded and decoded."""
    parts = urlsplit(url)
    found = (
        parts.password or "",
        *(value for name, value in parse_qsl(parts.query) if name in ("password", "ssl_password")),
    )
    return [form for password in found for form in (password, unquote(password)) if form]


def encoded_forms(secrets: Sequence[str]) -> Sequence[str]:
    """Return `secrets` in every form that they take in URLs, JSON and Python literals, longest first."""
    forms = {
        form
        for secret in secrets
        for form in (
            secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1],
            ascii(secret)[1:-1], repr(secret.encode())[2:-1],
        )
    }  # fmt: skip
    return sorted(forms - {""}, key=len, reverse=True)


def redact(text: str, forms: Sequence[str]) -> str:
    """Return `text` with `forms` and the password of every URL replaced by `***`."""
    for form in forms:
        text = text.replace(form, MASK)
    return redact_urls(text)


def redact_urls(text: str) -> str:
    """Return `text` with the password of every URL replaced by `***`."""
    return URL_PASSWORD.sub(lambda match: f"{match[1]}{MASK}@" if match[1] else f"{match[2]}{MASK}", text)


def show_invalid_url(value: object) -> object:
    """Return an invalid URL for an error message; `***` where it may hold a password."""
    return value if isinstance(value, str) and URL_WITHOUT_USER.fullmatch(value) else MASK


def insert_password(url: str, password: str) -> str:
    """Return `url` with a password for its user."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{host}").geturl()


def read_secret(file: Path, variable: str) -> str:
    """Return the single line in `file`; raises `InvalidConfig`, naming `variable`."""
    try:
        with file.open("rb") as opened:
            secret = opened.read(MAX_SECRET_BYTES + 1).decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidConfig(
            f"{variable} names {file}, which cannot be read ({why}); correct it", field=variable
        ) from None
    if not secret or len(secret) > MAX_SECRET_BYTES or not secret.isprintable():
        raise InvalidConfig(
            f"{variable} names {file}, which must hold one line, at most {MAX_SECRET_BYTES} bytes; write it there",
            field=variable,
        )
    return secret
