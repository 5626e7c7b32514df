"""The files of the page: what is vendored is what was released, and nothing from outside becomes markup."""

import base64
import gzip
import hashlib
import re
from pathlib import Path
from typing import get_args

import pytest
from fastapi import Request

from preflight.wire import Status
from worker.web.files.bundle import COMMENT, DYNAMIC, EXPORT, IMPORT, SCRIPT, bundle
from worker.web.files.static import FOR_EVER, StaticFile, page_files

PAGE = Path(__file__).parents[4] / "worker" / "web" / "page"
LIST_BYTES, JOB_BYTES = 28_000, 52_000
VENDOR = PAGE / "vendor"
SUMS = [line.split() for line in (VENDOR / "uPlot.sha256").read_text().splitlines()]
VENDORED = {name: digest for digest, name in SUMS}
FILES = sorted(path for path in PAGE.rglob("*") if path.is_file())
OWN = [path for path in FILES if path.parent != VENDOR and path.suffix in {".js", ".html", ".css"}]
STYLES = (PAGE / "style.css").read_text()
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser")
STYLED = re.compile(r"\bstyle=|[\"']style[\"']|cssText|\bon\w+=|javascript:", re.IGNORECASE)

NEWER_SCRIPT = {
    "Promise.withResolvers": r"\bwithResolvers\b",
    "Array by copy": r"\.(?:toSorted|toReversed|toSpliced)\(|\.with\(\d",
    "grouping": r"\b(?:Object|Map)\.groupBy\b",
    "Array.fromAsync": r"\bfromAsync\b",
    "iterator helpers": r"\.(?:values|keys|entries)\(\)\.(?!next\b|map\(\[)",
    "set methods": r"\.(?:union|intersection|symmetricDifference|isSubsetOf|isSupersetOf|isDisjointFrom)\(",
    "source of JSON": r"\brawJSON\b|source = ",
    "AbortSignal.any": r"AbortSignal\.any\b",
    "static URL methods": r"URL\.(?:canParse|parse)\b",
    "sets of regular expressions": r"/[dgimsuy]*v[dgimsuy]*[,.;)]",
    "popovers": r"popover",
    "view transitions": r"startViewTransition",
    "idle callbacks": r"requestIdleCallback|scheduler\.",
    "import attributes": r"\bwith \{ type:",
    "random ids": r"randomUUID",  # only in a secure context, which http://host is none
    "durations": r"DurationFormat",
    "moving elements": r"\bmoveBefore\b",
    "HTML from text": r"setHTML",
}
"""Feature -> how it is written, of which Chrome 109, Firefox 115 or Safari 16.4 lacks each."""
NEWER_STYLE = {
    "nesting": r"^\s*&|\{[^}@]*\{",
    "colours": r"light-dark\(|oklch\(|oklab\(|color-mix\(|\bfrom var\(",
    "wrapping": r"text-wrap|white-space-collapse|text-box",
    "rules": r"@(?:starting-style|scope|property|view-transition|position-try|container)",
    "sizes": r"field-sizing|interpolate-size|calc-size\(|\d(?:cap|rcap|rch|ric|lh|rlh)\b",
    "pseudo-classes": r":(?:user-valid|user-invalid|popover-open|state\()",
    "scroll bars": r"scrollbar-(?:width|color|gutter)",
    "functions": r"[^-\w](?:round|mod|rem|abs|sign|if|sibling-index)\(",
    "anchors": r"anchor-name|position-anchor|anchor\(",
    "subgrid": r"subgrid",
    ":has": r":has\(",
}


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


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=lambda path: path.name)
def test_a_script_runs_in_the_oldest_browsers(path: Path) -> None:
    """Those that index.html names; what they do not know would stop the page."""
    source = COMMENT.sub("", path.read_text())
    assert [feature for feature, written in NEWER_SCRIPT.items() if re.search(written, source)] == []


def test_the_styles_are_those_of_the_oldest_browsers() -> None:
    """But for two rules whose loss leaves a gap, and what is asked for with @supports."""
    known = re.sub(
        r"^\.(?:columns|details):not\(:has\(.*\)\) \{ display: none; \}|^@supports .*$", "", STYLES, flags=re.M
    )
    plain = re.sub(r"@(?:media|keyframes)[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", r"\1", COMMENT.sub("", known))
    assert [feature for feature, written in NEWER_STYLE.items() if re.search(written, plain, re.MULTILINE)] == []
    assert "Chrome 109, Firefox 115, Safari 16.4" in (PAGE / "index.html").read_text()


def test_the_page_is_small() -> None:
    """What the list and a job ask for, as it is sent, is below the bounds; the styles are within, under their hash."""
    files = page_files()
    index = files["index.html"].response(asked())
    html = bytes(index.body).decode()
    named = re.findall(r'"page/([\w./]+)"', html)
    assert set(named) == {"app.js", "icon.svg"}
    (job,) = [name for name in files if re.fullmatch(r"job-[0-9a-f]{12}\.js", name)]
    for names, most in ((("index.html", *named), LIST_BYTES), ((job, "vendor/uPlot.iife.min.js"), JOB_BYTES)):
        sent = [files[name].response(asked(accept_encoding="gzip")) for name in names]
        assert sum(len(response.body) for response in sent) <= most
    (style,) = re.findall("<style>(.*)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in index.headers["content-security-policy"]
    assert ".uplot" in style
    assert "--paper" in style


def test_the_scripts_have_every_module() -> None:
    """Each after those that it imports; no import, export or comment line of a module is left over."""
    scripts = bundle({path.relative_to(PAGE).as_posix(): path.read_text() for path in FILES if path.suffix != ".svg"})
    modules = {path.name for path in OWN if path.suffix == ".js"}
    for path in (path for path in OWN if path.suffix == ".js"):
        for _, name in EXPORT.findall(path.read_text()):
            assert any(re.search(rf"\b(?:function|class|const) {name}\b", script) for script in scripts.values())
    of_app: set[str] = set()
    for name, script in scripts.items():
        defined = {*of_app}
        for line in script.splitlines():
            if used := re.match(r"const \{.*\} = (\$module\d+);", line):
                assert used[1] in defined
            if ended := re.match(r"const (\$module\d+) = ", line):
                current = ended[1]
            if line == "})();":
                defined.add(current)
        of_app = of_app or defined
        rest = re.findall(r"^\s*(?:import\b|export\b|//|/\*).*", script, re.MULTILINE)
        assert len(rest) == (1 if name == SCRIPT else 2)
        assert {*re.findall(r'import\("\./([^"]+)"\)', script)} <= {*scripts}
    numbers = {number for script in scripts.values() for number in re.findall(r"^const (\$module\d+) =", script, re.M)}
    assert len(numbers) == len([path for path in OWN if path.suffix == ".js"]) >= len(modules)


def test_a_view_has_another_name_after_an_update() -> None:
    """A page that is open while the service is updated loads no view of the new version; a browser may keep each."""
    sources = {"views/app.js": 'const go = () => import("./a.js");\n', "views/a.js": "export const a = 1;\n"}
    before, after = bundle(sources), bundle({**sources, "views/a.js": "export const a = 2;\n"})
    assert {*before} & {*after} == {SCRIPT}
    (view,) = {*before} - {SCRIPT}
    assert f'import("./{view}")' in before[SCRIPT]
    cached = [file.response(asked()).headers["cache-control"] for name, file in page_files().items() if "-" in name]
    assert cached.count(FOR_EVER) >= 6


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=lambda path: path.name)
def test_a_module_can_be_bundled(path: Path) -> None:
    """No template literal has more than one line, in which comments and indentation would count."""
    source = path.read_text()
    assert all(line.count("`") % 2 == 0 for line in source.splitlines())
    assert len(re.findall(r"^import\b", source, re.MULTILINE)) == len(IMPORT.findall(source))
    assert len(re.findall(r"^export\b", source, re.MULTILINE)) == len(EXPORT.findall(source))
    assert source.count("import(") == len(DYNAMIC.findall(source))


def test_modules_that_import_each_other_are_refused() -> None:
    """The message names the way round."""
    sources = {
        "a.js": 'import { b } from "./b/b.js";\nexport const a = b;\n',
        "b/b.js": 'import { a } from "../a.js";\nexport const b = a;\n',
    }
    with pytest.raises(ValueError, match=r"a\.js imports b/b\.js imports a\.js"):
        bundle(sources, "a.js")


def test_the_page_has_the_statuses_of_the_service() -> None:
    """Its badges are those of `Status`."""
    (badges,) = re.findall(r"const ICONS = \{(.*?)\n\};", (PAGE / "lib" / "components.js").read_text(), re.DOTALL)
    assert {*re.findall(r"^  (\w+):", badges, re.MULTILINE), "unknown"} == set(get_args(Status))


def test_a_file_is_sent_compressed_and_only_once() -> None:
    """As the browser can take it; with the version that it has, nothing but the word that this is the newest."""
    path = PAGE / "views" / "app.js"
    file = StaticFile(path.name, path.read_bytes())
    plain, packed = file.response(asked()), file.response(asked(accept_encoding="gzip, br"))
    assert plain.body == path.read_bytes() == gzip.decompress(bytes(packed.body))
    assert packed.headers["content-encoding"] == "gzip"
    assert file.response(asked(accept_encoding="gzip;q=0")).body == plain.body
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
    again = file.response(asked(if_none_match=plain.headers["etag"]))
    assert (again.status_code, again.body) == (304, b"")
    assert file.response(asked(if_none_match='"another"')).status_code == 200


def asked(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_each_name_that_a_module_imports_is_exported() -> None:
    """A browser finds out only where the name is used: a dialog stays closed."""
    sources = {path: path.read_text() for path in PAGE.rglob("*.js") if "vendor" not in path.parts}
    declared = r"^export (?:async )?(?:function\*?|const|class|let) ([\w$]+)"
    exported = {path: set(re.findall(declared, source, re.MULTILINE)) for path, source in sources.items()}
    missing = []
    for path, source in sources.items():
        for names, where in re.findall(r'import \{([^}]*)\} from "(\.[^"]+)"', source):
            target = (path.parent / where).resolve()
            wanted = {name.split(" as ")[0].strip() for name in names.split(",")} - {""}
            missing += [f"{path.name}: {name} of {target.name}" for name in wanted - exported.get(target, wanted)]
    assert len(sources) > 20
    assert missing == []
