"""The runbook by reason, as the page shows it."""

import re
from pathlib import Path

from worker.web.documents.runbook import CHECKOUT, advice


def test_each_reason_of_a_job_has_advice() -> None:
    """The text ends where the next heading begins."""
    found = advice()
    assert {"out_of_memory", "diverged", "dataset_error", "quarantined", "timeout"} <= found.keys()
    assert found["diverged"].startswith("The loss, or a value in the checkpoint")
    assert not [reason for reason, text in found.items() if not text or re.search("^#", text, re.MULTILINE)]
    assert len(found) == len(re.findall(r"^#{2,3} `\w+`", CHECKOUT.read_text(), re.MULTILINE))


def test_the_image_has_the_runbook() -> None:
    """The Dockerfile copies what pyproject.toml puts into the wheel."""
    root = Path(__file__).parents[4]
    assert '"docs/how-to/runbook.md" = "share/preflight/runbook.md"' in (root / "pyproject.toml").read_text()
    assert "COPY docs/how-to/runbook.md docs/how-to/" in (root / "Dockerfile").read_text()
    assert "!docs/how-to/runbook.md" in (root / ".dockerignore").read_text()
