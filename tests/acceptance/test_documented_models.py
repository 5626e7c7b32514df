"""The requests of docs/how-to/models.md, as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

from PIL import Image, ImageDraw
from redis import Redis
from support.files.named_models import finish_job, make_model
from support.web.service import serving
from support.worker.services import ROOT

from worker.config.settings import Settings


def test_documented_python_recognizes(tmp_path: Path) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "models.md").read_text(), re.DOTALL)
    make_model(tmp_path / "artifacts", "first", 0)
    draw(tmp_path / "seven.png")
    done = subprocess.run([sys.executable, "-P", "-c", lines], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" None\n")


def draw(path: Path) -> None:
    """Draw a stroke."""
    image = Image.new("L", (60, 60), "white")
    ImageDraw.Draw(image).line((30, 10, 25, 50), fill="black", width=6)
    image.save(path)


def test_documented_requests_are_answered(settings: Settings, raw: Redis, tmp_path: Path) -> None:
    """On another port, with two models in place of trained ones."""
    (lines,) = re.findall(r"```sh\n(url.*?)```", (ROOT / "docs" / "how-to" / "models.md").read_text(), re.DOTALL)
    hashes = [finish_job(raw, settings.artifact_dir, job, seed) for seed, job in enumerate(("before", "first"))]
    for name in ("seven", "one"):
        draw(tmp_path / f"{name}.png")
    with serving(settings, tmp_path) as service:
        promoted = service.ask(
            "POST", "/v1/models/production/promote", b'{"job_id": "before"}', {"content-type": "application/json"}
        )
        assert promoted.status == 200, promoted.body
        program = lines.replace(":8000/", f":{service.port}/").replace("curl ", "curl --fail-with-body -sS ")
        done = subprocess.run(["bash", "-ec", program], cwd=tmp_path, capture_output=True, text=True)  # noqa: S607 - as documented
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f'"model_sha256":"{hashes[1]}","class":') == 3
    assert '"predictions":[' in done.stdout
    assert '"action":"rollback"' in done.stdout
