"""Documents and docstrings name what exists: commands, options, routes, settings, fields, modules and files."""

import ast
import builtins
import io
import json
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from worker.cli import main
from worker.config.settings import Settings

ROOT = Path(__file__).parents[2]
HISTORY = {"CHANGELOG.md", "docs/decisions.md"}
"""They name what is gone."""
PRODUCT = ("client/preflight/", "worker/", "calibration/", "training/", "tools/", "deploy/examples/")
SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^(?:\$ )?|[`(=] ?)preflight ((?!import)[a-z][a-z-]*(?: [^`\n|#]*)?)", re.MULTILINE)
FILE = re.compile(r"(?<![\w/.:~$}-])((?:[\w.-]+/)*[\w.-]+\.(?:py|md|lua|yml|yaml|toml|html|js|ts|css))(?![\w/(])")
WORD = re.compile(r"[A-Za-z_]\w*")
FOREIGN = {
    "preflight_producer_secrets", "proxy_pass", "register_death", "shm_size", "file_mode", "local_lock", "sun_path",
    "use_attribute_docstrings", "__set_name__", "explain_", "maintenance_interval",
}  # fmt: skip
"""Names of nginx, Docker, Kubernetes, RQ, Python and Linux; a user's own network."""
FOREIGN_FILES = {
    "train.py", "worker.py", "calibration.py", "app.py", "sitecustomize.py", "run_worker.py", "heroku.yml",
    "torch/_compile.py",
    "report.html", "src/api.ts",
}  # fmt: skip
"""Files of a user or a library; what a training and a build write."""


@cache
def tracked() -> tuple[str, ...]:
    listed = subprocess.run(
        ["/usr/bin/env", "git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return tuple(name for name in listed.splitlines() if "/results/" not in name and (ROOT / name).is_file())


def pages() -> list[str]:
    return [name for name in tracked() if name.endswith(".md") and name not in HISTORY]


@cache
def docstrings() -> tuple[tuple[str, str], ...]:
    """Return (file, docstring) of all product modules; strings below a name count, too."""
    found: list[tuple[str, str]] = []
    for name in tracked():
        if name.startswith(PRODUCT) and name.endswith(".py"):
            for node in ast.walk(ast.parse((ROOT / name).read_text())):
                match node:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found.append((f"{name}:{node.lineno}", text))
    return tuple(found)


@cache
def words() -> frozenset[str]:
    """Return each word of code and configuration, without docstrings, comments and documents."""
    found = set(dir(builtins))
    for name in tracked():
        path = ROOT / name
        if path.suffix == ".py" and not name.startswith("tests/repository/"):
            for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
                if token.type not in (tokenize.COMMENT,) and not token.string.startswith(('"""', 'r"""')):
                    found.update(WORD.findall(token.string))
        elif path.suffix not in (".py", ".md", ".png", ".svg", ".gz"):
            found.update(WORD.findall(path.read_text(errors="ignore")))
    return frozenset(found | FOREIGN)


def texts() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of each document and docstring."""
    yield from ((name, (ROOT / name).read_text()) for name in pages())
    yield from docstrings()


def code(text: str) -> Iterator[str]:
    """Yield what stands in backticks or in a fenced block."""
    yield from FENCE.findall(text)
    yield from SPAN.findall(FENCE.sub("", text))


def test_each_command_and_option_exists() -> None:
    """`preflight X --option` in a document or docstring is a command with that option."""
    wrong: list[str] = []
    seen = 0
    for place, text in texts():
        for span in code(text):
            for found in COMMAND.findall(span):
                seen += 1
                wrong += [f"{place}: preflight {found}: {why}" for why in refusals(found.split())]
    assert seen > 100
    assert wrong == []


def refusals(arguments: list[str]) -> Iterator[str]:
    """Yield what of a command line does not exist."""
    command: click.Command = main
    with click.Context(main) as context:
        while isinstance(command, click.Group) and arguments:
            inner = command.get_command(context, arguments[0])
            if inner is None:
                if command is main or arguments[0].islower():
                    yield f"no command {arguments[0]}"
                return
            command, arguments = inner, arguments[1:]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for argument in arguments:
        if argument in ("--", "&&", "|", ";", "||"):
            return
        option = argument.strip("[](),.;").partition("=")[0].partition("|")[0]
        if re.fullmatch(r"--[a-z-]+", option) and option not in {*options, "--help"}:
            yield f"no option {option}"


def test_each_route_exists() -> None:
    """`GET /v1/...` in a document or docstring is in openapi.json, or one of the pages."""
    document = json.loads((ROOT / "docs/schemas/openapi.json").read_text())
    served = {(method.upper(), unnamed(path)) for path, methods in document["paths"].items() for method in methods}
    wrong: list[str] = []
    seen = 0
    for place, text in texts():
        for method, path in re.findall(r"`(GET|POST|PUT|DELETE|HEAD) (/v1[^\s`?]*)", text):
            seen += 1
            if ("GET" if method == "HEAD" else method, unnamed(path)) not in served:
                wrong.append(f"{place}: {method} {path}")
    assert seen > 10
    assert wrong == []


def unnamed(path: str) -> str:
    """Return `path` with each parameter as {}."""
    return re.sub(r"\{\w+\}|<\w+>|(?<=/)[A-Z_]+(?=/|$)", "{}", path.rstrip("/.,"))


def test_each_setting_exists() -> None:
    """`PREFLIGHT_...` in a document or docstring is a word of the code or of a deployment."""
    wrong = {
        f"{place}: {name}"
        for place, text in texts()
        for name in re.findall(r"\bPREFLIGHT_[A-Z_]*[A-Z](?![\w*{])", text)
        if name not in words() and name.removeprefix("PREFLIGHT_").lower() not in Settings.model_fields
    }  # fmt: skip
    assert wrong == set()


def test_each_file_exists() -> None:
    """A file that a document or docstring names is in the repository, at that path or at the end of one."""
    ends = {"/".join(parts[start:]) for name in tracked() for parts in [name.split("/")] for start in range(len(parts))}
    wrong = {
        f"{place}: {file}"
        for place, text in texts()
        for span in ([text] if ":" in place else code(text))
        for file in FILE.findall(span) if file not in ends | FOREIGN_FILES
    }  # fmt: skip
    assert wrong == set()


def test_each_module_exists() -> None:
    """`python -m X`, `worker.a.b` and `make X` name a module and a target."""
    packages = ("preflight", "worker", "calibration", "training", "tools")
    modules = {
        re.sub(r"(/__init__|/__main__)?\.py$", "", name.removeprefix("client/")).replace("/", ".")
        for name in tracked() if name.endswith(".py")
    }  # fmt: skip
    literals = set(
        re.findall(
            r"[\"']([a-z]\w*(?:\.\w+)+)[\"']",
            "".join((ROOT / f).read_text() for f in tracked() if f.endswith((".py", ".toml"))),
        )
    )
    folders = {module.rpartition(".")[0] for module in modules}
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong: list[str] = []
    for place, text in texts():
        for span in code(text):
            for name in re.findall(
                rf"(?<![\w./@-])((?:{'|'.join(packages)})(?:\.[a-z_]\w*)+)(?![\w(/-]|\.[a-z])", span
            ):
                path = name.split(".")
                is_literal = name in literals or name.endswith((".py", ".yaml"))
                if not is_literal and not any(
                    ".".join(path[:end]) in modules | folders for end in (len(path), len(path) - 1) if end > 1
                ):
                    wrong.append(f"{place}: {name}")
            for target in re.findall(r"(?:^|\n)make (?:--jobs \d )?([a-z][\w-]+)", span):
                if target not in targets:
                    wrong.append(f"{place}: make {target}")
    assert wrong == []


def test_each_name_in_backticks_exists() -> None:
    """A snake_case name in a document, and each identifier in backticks of a docstring, is a word of the code."""
    wrong = {
        f"{place}: {name}"
        for place, text in docstrings()
        for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text) if name.split(".")[-1] not in {"", *words()}
    } | {
        f"{page}: {name}"
        for page in pages()
        for span in SPAN.findall((ROOT / page).read_text())
        for name in re.findall(r"(?<![\w/.-])[a-z]+_\w+(?![\w/])", span) if name not in words()
    }  # fmt: skip
    assert wrong == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("preflight enqueue --epoch 3", ["no option --epoch"]),
        ("preflight enqeue", ["no command enqeue"]),
        ("preflight cache wipe", ["no command wipe"]),
        ("preflight enqueue --epochs=3 --wait && ls --all", []),
    ],
)
def test_what_is_wrong_is_found(text: str, found: list[str]) -> None:
    """The tests above can fail."""
    assert list(refusals(text.split()[1:])) == found
