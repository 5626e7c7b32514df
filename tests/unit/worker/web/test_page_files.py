"""The files of the page: what is vendored is what was released, and nothing from outside becomes markup."""

import gzip
import hashlib
import re
from pathlib import Path
from typing import get_args

import pytest
from fastapi import Request

from worker.web.files.static import StaticFile
from worker.wire import STATUS_BY_EVENT, Status

PAGE = Path(__file__).parents[4] / "worker" / "web" / "page"
MAX_BYTES = 170_000
VENDOR = PAGE / "vendor"
SUMS = [line.split() for line in (VENDOR / "uPlot.sha256").read_text().splitlines()]
VENDORED = {name: digest for digest, name in SUMS}
FILES = sorted(path for path in PAGE.rglob("*") if path.is_file())
OWN = [path for path in FILES if path.parent != VENDOR and path.suffix in {".js", ".html", ".css"}]
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser")
STYLED = re.compile(r"\bstyle=|[\"']style[\"']|cssText|\bon\w+=|javascript:", re.IGNORECASE)


@pytest.mark.parametrize("name", sorted(VENDORED))
def test_what_is_vendored_is_what_was_released(name: str) -> None:
    """Checksums are those of the package uplot 1.6.32 on npm."""
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == VENDORED[name]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_nothing_becomes_markup_and_nothing_is_styled_inline(path: Path) -> None:
    """Texts go in as text nodes; the policy that forbids inline styles and scripts is never in the way."""
    assert not MARKUP.findall(path.read_text())
    assert not STYLED.findall(path.read_text())
    assert not re.findall(r"https?://(?!www\.w3\.org)", path.read_text())


def test_the_page_is_small_and_names_its_parts() -> None:
    """What index.html asks for at once, as it is sent, is below the bound; other folders come when they are shown."""
    index, router = (PAGE / "index.html").read_text(), (PAGE / "views" / "app.js").read_text()
    later = [PAGE / "views" / Path(path).parent for path in re.findall(r'import\("\./([\w./]+)"\)', router)]
    at_once = [path for path in FILES if path.parent not in later]
    assert sum(len(gzip.compress(path.read_bytes())) for path in at_once) <= MAX_BYTES
    assert set(re.findall(r'"/page/([\w./]+)"', index)) == {
        path.relative_to(PAGE).as_posix() for path in at_once if path.suffix in {".js", ".css", ".svg"}
    }


def test_the_page_has_the_statuses_of_the_service() -> None:
    """Its badges are those of `Status`, and it derives a status from the same events."""
    page = "".join(path.read_text() for path in OWN if path.suffix == ".js")
    (badges,) = re.findall(r"const ICONS = \{(.*?)\n\};", page, re.DOTALL)
    (by_event,) = re.findall(r'\{([^{}]*training_done: "finished"[^{}]*)\}', page)
    assert {*re.findall(r"^  (\w+):", badges, re.MULTILINE), "unknown"} == set(get_args(Status))
    assert dict(re.findall(r'(\w+): "(\w+)"', by_event)) == STATUS_BY_EVENT


def test_a_file_is_sent_compressed_and_only_once() -> None:
    """As the browser can take it; with the version that it has, nothing but the word that this is the newest."""
    path = PAGE / "views" / "app.js"
    file = StaticFile(path)
    plain, packed = file.response(asked()), file.response(asked(accept_encoding="gzip, br"))
    assert plain.body == path.read_bytes() == gzip.decompress(bytes(packed.body))
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
    again = file.response(asked(if_none_match=plain.headers["etag"]))
    assert (again.status_code, again.body) == (304, b"")
    assert file.response(asked(if_none_match='"another"')).status_code == 200


def asked(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})
