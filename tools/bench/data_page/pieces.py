"""Pieces of the bench: each measures a part of the page "Data", with its bounds."""

import hashlib
import http.client
import io
import os
import re
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image
from support.web.browser import open_browser
from support.web.service import Answer
from support.worker.services import wait_for, wait_until

from preflight.wire import TrainJob
from tools.bench.data_page.figures import Figure
from tools.bench.page.site import Site, running_site
from tools.bench.record import describe_machine
from training.catalog.catalog import Catalog
from training.data.builtin.catalog import MNIST
from training.importing.difference import read_rows
from training.importing.issues import Issues
from worker.imports.records import ImportState

DRAWN: Final = """
const done = arguments[0];
const look = () => {
  if (!document.querySelector(".samples canvas")) return requestAnimationFrame(look);
  const parts = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  done([performance.now() / 1000, parts.reduce((sum, { transferSize }) => sum + transferSize, 0) / 1000]);
};
look();
"""
"""Returns seconds since the navigation, and kilobytes, once the first samples are drawn."""
PROBED: Final = ("/v1/overview", "/v1/datasets", "/v1/jobs?limit=20")
BINARY: Final = {"content-type": "application/octet-stream"}
PAUSE: Final = 0.02
"""Seconds between two requests during an upload."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements; smaller ones than by default are a trial of the bench itself."""

    rounds: int
    card: int
    upload: int
    """Bytes of an upload."""
    trained: int
    """Steps of a training."""
    imported: int
    """Pictures that are imported during a training."""
    flipped: int
    """Labels; one of a hundred is wrong."""


class Bench:
    """Measures a piece after the other."""

    def __init__(self, root: Path, sizes: Sizes) -> None:
        own = Path(os.environ["PREFLIGHT_DATA_DIR"])
        found = MNIST.load(own, download=False)
        self.images: npt.NDArray[np.uint8] = found.train.images[:, 0]
        self.labels = found.train.labels
        self.root, self.sizes, self.data = root, sizes, root / "data"
        self.data.mkdir()
        for path in own.iterdir():
            if path.is_file():
                (self.data / path.name).symlink_to(path)
        self.figures: list[Figure] = []

    def card(self) -> None:
        count = self.sizes.card
        shifts = range(-(-count // len(self.images)))
        images = np.concatenate([np.roll(self.images, shift, 2) for shift in shifts])[:count]
        self._add("card", images, np.tile(self.labels, len(shifts))[:count])
        seconds: list[float] = []
        kilobytes: list[float] = []
        with self._site() as site, open_browser(site.folder / "profile", site.folder, every_view=False) as browser:
            for _ in range(self.sizes.rounds):
                browser.driver.execute_cdp_cmd("Network.clearBrowserCache", {})
                browser.open(f"{site.service.url}/#/data/card")
                drawn: list[float] = browser.driver.execute_async_script(DRAWN)
                seconds.append(drawn[0])
                kilobytes.append(drawn[1])
        size = f"{count:,} samples"
        self._note("card", "card drawn", seconds, (".2f", " s"), 1.0, size=size)
        self._note("card", "bytes of page and card", kilobytes, (".0f", " KB"), 300.0, of="worst", size=size)

    def upload(self) -> None:
        size = self.sizes.upload
        peaks: list[float] = []
        waits: list[float] = []
        rates: list[float] = []
        for _ in range(self.sizes.rounds):
            with self._site() as site:
                for path in PROBED:  # what a first request imports is no part of the upload
                    _ask(site, path)
                took, found = _during(partial(_send, site, size), lambda: [_ask(site, path) for path in PROBED])
                rates.append(size / 1e6 / took)
                waits += found
                status = Path(f"/proc/{site.service.process.pid}/status").read_text()
                peaks.append(int(str(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])) / 1024)
        said = f"{size / 1e6:,.0f} MB at {statistics.median(rates):,.0f} MB/s"
        self._note("upload", "peak memory of the web service", peaks, (".0f", " MiB"), 256.0, of="worst", size=said)
        self._note("upload", "other requests, median", [statistics.median(waits)], (".1f", " ms"), 50.0, size=said)
        self._note("upload", "other requests, slowest", [max(waits)], (".1f", " ms"), 50.0, of="worst",
                   size=f"{len(waits):,} requests; {said}")  # fmt: skip

    def beside(self) -> None:
        body = self._archive()
        ratios: list[float] = []
        shares: list[float] = []
        with self._site() as site:
            self._train(site, "warm", None)
            for number in range(self.sizes.rounds):
                pair: dict[bool, float] = {}
                for with_import in (False, True) if number % 2 else (True, False):
                    took, share = self._train(site, f"{number}-{with_import}", body if with_import else None)
                    pair[with_import] = took
                    shares += [share] if with_import else []
                ratios.append(100 * (pair[True] / pair[False] - 1))
                print(f"pair {number + 1}: {pair[False]:.2f} s alone, {pair[True]:.2f} s beside an import", flush=True)
        share = statistics.median(shares)
        size = f"{self.sizes.trained} steps beside {self.sizes.imported:,} PNG, {share:.0%} of the time"
        self._note("beside", "slowdown of a training", ratios, (".1f", " %"), 10.0, size=size)

    def flipped(self) -> None:
        count = self.sizes.flipped
        rng = np.random.default_rng(53)
        wrong = rng.choice(count, count // 100, replace=False)
        labels = self.labels[:count].copy()
        labels[wrong] = (labels[wrong] + rng.integers(1, 10, len(wrong))) % 10
        self._add("flipped", self.images[:count], labels)
        catalog = Catalog(self.data)
        rows = read_rows(catalog, catalog.find("flipped"))
        right = {row["content"].tobytes() for row in rows}
        began = time.perf_counter()
        done = self._command("data", "issues", "flipped", "--most", str(max(count // 60, 1)), "--json")
        took = time.perf_counter() - began
        hashes = {_content(self.images[number]) for number in wrong} & right
        listed = {rows[issue.sample]["content"].tobytes() for issue in Issues.model_validate_json(done).issues}
        share = 100 * len(hashes & listed) / len(hashes)
        size = f"{len(hashes):,} of {count:,} labels, among the first {max(count // 60, 1):,}, in {took:.0f} s"
        self._note("flipped", "wrong labels that are found", [share], (".1f", " %"), 90.0, most=False, size=size)

    def _site(self) -> AbstractContextManager[Site]:
        return running_site(data_dir=self.data, PREFLIGHT_REPORT="off")

    def _note(
        self, piece: str, name: str, values: Sequence[float], form: tuple[str, str], bound: float, *,
        of: str = "median", most: bool = True, size: str = "",
    ) -> None:  # fmt: skip
        self.figures.append(Figure(
            piece=piece, name=name, values=tuple(round(value, 4) for value in values), form=form[0], unit=form[1],
            bound=bound, of=of, most=most, size=size, version=version("preflight-worker"),
            at=datetime.now(UTC).isoformat(timespec="seconds"), machine=describe_machine(),
        ))  # fmt: skip

    def _add(self, name: str, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.generic]) -> None:
        """Import arrays as a data set."""
        path = self.root / f"{name}.npz"
        np.savez(path, images=images, labels=labels)
        self._command("data", "add", name, str(path), "--keep-duplicates", "--json")
        path.unlink()

    def _command(self, *words: str) -> str:
        environment = {**os.environ, "PREFLIGHT_DATA_DIR": str(self.data)}
        for name in ("cache", "state", "artifact"):
            environment[f"PREFLIGHT_{name.upper()}_DIR"] = str(self.root / name)
        command = [sys.executable, "-P", "-m", "worker.cli", *words]
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def _archive(self) -> bytes:
        """Return a zip with the pictures that are imported during a training."""
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for number in range(self.sizes.imported):
                picture = io.BytesIO()
                Image.fromarray(self.images[number]).save(picture, "PNG")
                archive.writestr(f"{self.labels[number]}/{number}.png", picture.getvalue())
        return file.getvalue()

    def _train(self, site: Site, job_id: str, body: bytes | None) -> tuple[float, float]:
        """Train; return its seconds, and for which share of them an import ran."""
        job = {"type": "preflight.train.v1", "dataset": "mnist", "job_id": job_id, "calibrate": False,
               "epochs": 2, "max_steps": self.sizes.trained}  # fmt: skip
        site.client.enqueue(TrainJob.model_validate(job, strict=True))
        wait_until(lambda: site.client.status(job_id).step is not None, 120)
        began, share = time.time(), 0.0
        state = None if body is None else _post(site, f"beside-{job_id}".lower(), body)
        wait_for(site.client, job_id, "finished", seconds=600)
        over = time.time()
        if state is not None:
            ended = _ended(site, state)
            share = (min(over, ended.updated_at) - ended.created_at) / (over - began)
            _ended(site, _state(site.service.ask("DELETE", f"/v1/datasets/{ended.name}")))
        result = site.client.result(job_id)
        assert result is not None
        assert result.train_s is not None
        return result.train_s, share


def _during(action: Callable[[], float], probe: Callable[[], list[float]]) -> tuple[float, list[float]]:
    """Return the result of `action`, and all results of `probe`, which is called again and again meanwhile."""
    found: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(action)
        while not running.done():
            found += probe()
            time.sleep(PAUSE)
        return running.result(), found


def _ask(site: Site, path: str) -> float:
    """Return the milliseconds of a request."""
    began = time.perf_counter()
    assert site.service.ask("GET", path).status == 200
    return 1000 * (time.perf_counter() - began)


def _send(site: Site, size: int) -> float:
    """Upload `size` bytes; return the seconds."""
    block = os.urandom(1 << 20)
    blocks = (block[: min(len(block), size - sent)] for sent in range(0, size, len(block)))
    began = time.perf_counter()
    with closing(http.client.HTTPConnection("127.0.0.1", site.service.port, timeout=300)) as connection:
        connection.request(
            "POST", "/v1/datasets/big?file=a.zip", blocks, {**BINARY, "content-length": str(size)}
        )  # fmt: skip
        answer = connection.getresponse()
        assert answer.status == 202, answer.read()
    return time.perf_counter() - began


def _post(site: Site, name: str, body: bytes) -> ImportState:
    return _state(site.service.ask("POST", f"/v1/datasets/{name}?file=a.zip", body, BINARY))


def _state(answer: Answer) -> ImportState:
    assert answer.status in (200, 202), answer.body
    return ImportState.model_validate_json(answer.body)


def _ended(site: Site, state: ImportState) -> ImportState:
    """Return the last state of an import."""
    while not state.has_ended:
        time.sleep(0.1)
        state = _state(site.service.ask("GET", f"/v1/imports/{state.import_id}"))
    assert state.status == "finished", state
    return state


def _content(image: npt.NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()
