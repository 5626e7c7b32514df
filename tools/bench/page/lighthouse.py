"""Lighthouse: scores, first paint, layout shift and bytes of each view, on a desktop and on a phone."""

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from support.files.pictures import imported, save_tree
from support.redis.long_runs import add_run

from tools.bench.page.site import LOWEST_PRIORITY, Site, running_site
from tools.bench.record import judged, samples, start

RELEASE: Final = "lighthouse@12.8.2"
CATEGORIES: Final = ("performance", "accessibility", "best-practices")
SCORE_BOUNDS: Final = {"desktop": 98, "phone": 95}
PAINT_BOUND: Final = 1.0
"""Seconds until the first paint, on the phone and the slow network that Lighthouse simulates, too."""
BYTES_BOUND: Final = 170
"""Kilobytes of the whole page, as they are sent, with the answers about its jobs."""
CHROME_FLAGS: Final = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage"


class Audit(BaseModel):
    """A measurement of Lighthouse."""

    numericValue: float = 0.0  # noqa: N815 - as Lighthouse names it


class Category(BaseModel):
    """A score, from 0 to 1."""

    score: float


class Report(BaseModel):
    """The parts of a report that are read."""

    audits: Mapping[str, Audit]
    categories: Mapping[str, Category]


@dataclass(frozen=True, slots=True)
class Visit:
    """One run of Lighthouse."""

    scores: Mapping[str, float]
    paint_seconds: float
    shift: float
    kilobytes: float


def measure(rounds: int, keep: Path | None) -> None:
    """Print and write the table; reports are kept in `keep`."""
    program = install(Path("build") / "lighthouse")
    record = start("lighthouse", f"python -m tools.bench.page lighthouse --rounds {rounds}")
    record.head(f"median (range) of {rounds}", *CATEGORIES, "first paint", "layout shift", "sent", "")
    with running_site(LOWEST_PRIORITY, PREFLIGHT_REPORT="auto") as site:
        for name, address in views(site).items():
            for device, bound in SCORE_BOUNDS.items():
                visits = [
                    visit(program, f"{site.service.url}/{address}", device, keep and keep / f"{name}-{device}-{number}")
                    for number in range(rounds)
                ]
                reached = (
                    all(statistics.median(one.scores[kind] for one in visits) >= bound for kind in CATEGORIES)
                    and statistics.median(one.paint_seconds for one in visits) <= PAINT_BOUND
                    and statistics.median(one.kilobytes for one in visits) <= BYTES_BOUND
                )
                record.row(
                    f"{name}, {device}",
                    *(samples([one.scores[kind] for one in visits], ".0f") for kind in CATEGORIES),
                    samples([one.paint_seconds for one in visits], ".2f", " s"),
                    samples([one.shift for one in visits], ".3f"),
                    samples([one.kilobytes for one in visits], ".0f", " KB"),
                    judged(reached),
                )
    record.note(
        f"Bounds: scores of {SCORE_BOUNDS['desktop']} on a desktop and {SCORE_BOUNDS['phone']} on a phone, first paint "
        f"{PAINT_BOUND:g} s, {BYTES_BOUND} KB. {RELEASE}, whose phone has a fourth of the processor and 1.6 Mbit/s."
    )
    record.write()


def views(site: Site) -> dict[str, str]:
    """Make the jobs, and return the address of each view."""
    for rate in range(1, 6):
        add_run(site.redis, site.client, f"run-{rate}", rate, learning_rate=rate / 1000)
    site.finish("finished", epochs=8)
    site.begin("running")
    imported(site.data_dir, save_tree(site.folder / "photos", mode="RGB", side=64), "photos")
    runs = "&".join(f"job=run-{rate}" for rate in range(1, 6))
    return {
        "list": "#/", "form": "#/new", "comparison": f"#/compare?{runs}",
        "running job": "#/jobs/running", "finished job": "#/jobs/finished", "data sets": "#/data",
        "a data set": "#/data/photos",
    }  # fmt: skip


def install(folder: Path) -> Path:
    """Install Lighthouse with npm into `folder`, and return its program."""
    program = folder / "node_modules" / ".bin" / "lighthouse"
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("there is no npm, which installs Lighthouse; install Node 20 or newer")
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", folder, RELEASE], check=True)
    return program.absolute()


def visit(program: Path, address: str, device: str, keep: Path | None) -> Visit:
    """Run Lighthouse once."""
    preset: Sequence[str] = ["--preset=desktop"] if device == "desktop" else []
    command = [
        str(program), address, *preset, "--output=json", "--quiet", f"--chrome-flags={CHROME_FLAGS}",
        f"--only-categories={','.join(CATEGORIES)}", "--max-wait-for-load=15000",
    ]  # fmt: skip
    environment = {**os.environ, "CHROME_PATH": shutil.which("chromium") or ""}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"Lighthouse failed at {address}: {done.stderr.decode(errors='replace')[-500:]}")
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        keep.with_suffix(".json").write_bytes(done.stdout)
    report = Report.model_validate(json.loads(done.stdout))
    audits = report.audits
    return Visit(
        {kind: 100 * report.categories[kind].score for kind in CATEGORIES},
        audits["first-contentful-paint"].numericValue / 1e3, audits["cumulative-layout-shift"].numericValue,
        audits["total-byte-weight"].numericValue / 1e3,
    )  # fmt: skip
