"""A command's output on a page, compared with the real output: words are compared, figures are not."""

import re
from pathlib import Path
from typing import Final

BLOCK: Final = re.compile(r"```text\n(.*?)```", re.DOTALL)
VARIES: Final = (
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "ID"),
    (r"\(cpu: [^)]*\)", "(SOURCE)"),
    (r" \(quota [\d.]+\)", ""),
    (r"by worker \S+", "by worker NAME"),
    (r"(?<=\s)~?/[\w./-]*\w", "PATH"),
    (r"\d[\d,]*(\.\d+)*(\+\w+)?", "#"),
    (r"# (us|ms|s|min|h)\b", "# s"),
    (r"# [MG]iB", "# MiB"),
    (r"\b(core|thread)s?\b", r"\1s"),
)  # fmt: skip
"""Pattern of a text that differs between machines and runs, and its placeholder."""


def shown_output(page: Path, words: str) -> list[str]:
    """Return the lines of the page's text block that has these words, as `normalized`."""
    (block,) = [text for text in BLOCK.findall(page.read_text()) if words in text]
    return normalized(block)


def normalized(text: str) -> list[str]:
    """Return the lines of a text without figures, names and paths, and of equal ones the first."""
    for pattern, instead in VARIES:
        text = re.sub(pattern, instead, text)
    return [*dict.fromkeys(line.rstrip() for line in text.splitlines() if line.strip())]
