"""Values of variables as secrets, .env files and templates deliver them."""

import re
import unicodedata
from typing import Final
from urllib.parse import urlsplit

from preflight.errors import InvalidConfig

QUOTES: Final = {'"': '"', "'": "'", "\N{LEFT DOUBLE QUOTATION MARK}": "\N{RIGHT DOUBLE QUOTATION MARK}"}
"""Opening -> closing mark: `docker run --env-file` keeps those of the file, and a word processor bends them."""
BLANK: Final = "\ufeff\u200b\u2060"
"""Characters without a width that `str.strip` leaves around a copied value: byte order mark, zero-width space."""
TEMPLATE: Final = re.compile(
    r"\$\{\{[^{}]*\}\}"  # Railway, GitHub Actions
    r"|\{\{[^{}]*\}\}"  # Helm, Jinja, CloudFormation
    r"|\$\([A-Za-z_][\w.-]*\)"  # Kubernetes, Azure Pipelines
    r"|\$\{[A-Za-z_][^{}\s]*\}"  # Compose, shells, DigitalOcean
    r"|^[$%][A-Za-z_]\w*%?$"  # a whole value: shells and cmd.exe
    r"|^@Microsoft\.KeyVault\(.*\)$"
)
"""Placeholder that somebody was meant to replace."""
URL_WITHOUT_QUERY: Final = re.compile(r"[a-z][a-z0-9+.-]*:/[^\s?#]+")
"""URL without a query: a query often holds a key."""
MAX_SHOWN: Final = 60
"""Most characters of a placeholder in a message."""


def clean(value: str) -> str:
    """Return a value without the white space and the quotation marks around it; "" where nothing else is in it."""
    while True:
        stripped = value.strip().strip(BLANK)
        if len(stripped) > 1 and QUOTES.get(stripped[0]) == stripped[-1]:
            stripped = stripped[1:-1]
        if stripped == value:
            return value
        value = stripped


def require_plain(value: str, variable: str, *, secret: bool) -> None:
    """Refuse a cleaned value that nobody can have meant; a `secret` is not shown.

    Raises:
        InvalidConfig: it has a placeholder that was not replaced, a control character, or half a pair of quotation
            marks.
    """
    if placeholder := TEMPLATE.search(value):
        shown = "a placeholder" if secret else f"the placeholder {placeholder[0][:MAX_SHOWN]}"
        raise InvalidConfig(
            f"{variable} holds {shown}, which nothing has replaced; set the variable that it refers to, "
            "or write the value itself",
            field=variable,
        )
    control = next((character for character in value if unicodedata.category(character) == "Cc"), None)
    if control is not None:
        raise InvalidConfig(
            f"{variable} has a control character in it ({ascii(control)[1:-1]}); write one line of text",
            field=variable,
        )
    if not secret and (value[:1] in QUOTES or value[-1:] in ("'", '"')):
        raise InvalidConfig(
            f"{variable} has a quotation mark on one side only; write the value without quotation marks",
            field=variable,
        )


def require_url(value: str) -> str:
    """Return a URL of a store or a server as it is; raises `ValueError` where it is none, or has a query."""
    try:
        urlsplit(value).port  # noqa: B018 - raises for an invalid port, quoting a part of a password
        plain = URL_WITHOUT_QUERY.fullmatch(value) is not None
    except ValueError:
        plain = False
    if not plain:
        raise ValueError(
            "must be a URL such as s3://bucket/prefix or https://host:port/path, without a query; "
            "credentials go into the variables that its service reads"
        )
    return value
