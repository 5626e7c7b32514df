"""The checks of images: ours, and one of a user with `preflight run` in it."""

import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.bench.containers.host import Check, Host, Row
from tools.bench.containers.stack import IMAGE, ROOT

LARGEST_IMAGE: Final = 1.2e9
"""Most bytes of the image on disk."""
EXAMPLES: Final = "deploy/examples/run"
BASES: Final = {"the project's image": IMAGE, "a plain Python image": "python:3.11-slim-bookworm"}
"""Images that `preflight run` is put into, with what the examples import."""
SCRIPTS: Final = ("plain.py", "library.py", "autoencoder.py", "bert.py")
STEPS: Final = 300
ARGUMENTS: Final = ("TORCH_INDEX_URL", "TORCH_PACKAGES")
"""Build arguments that are taken from the environment."""


def the_image(host: Host) -> Iterator[Row]:
    """Yield the size of the image on a disk and as a registry sends it, and the versions in it."""
    size = int(host.docker("image", "inspect", IMAGE, "--format", "{{.Size}}"))
    yield Row("image on disk", f"{size / 1e6:,.0f} MB", f"{LARGEST_IMAGE / 1e6:,.0f} MB", size <= LARGEST_IMAGE)
    with tempfile.TemporaryDirectory(prefix="preflight-image-", dir=ROOT / "build") as name:
        saved = Path(name) / "image.tar"
        host.docker("save", "-o", str(saved), IMAGE)
        packed = _gzipped(saved)
    yield Row("image compressed", f"{packed / 1e6:,.0f} MB")
    versions = host.docker("run", "--rm", "--entrypoint", "python", IMAGE, "-c", VERSIONS)
    yield Row("in it", versions)


VERSIONS: Final = """
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try: return f"{name} {version(name)}"
    except PackageNotFoundError: return f"no {name}"
print(", ".join(map(of, ("torch", "torchvision", "numpy", "fastapi", "s3fs"))))
"""


def _gzipped(path: Path) -> int:
    import zlib

    packer, packed = zlib.compressobj(level=6, wbits=31), 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            packed += len(packer.compress(block))
    return packed + len(packer.flush())


def a_code_change(host: Host) -> Iterator[Row]:
    """Yield the time of building again after an edit of one module."""
    module = ROOT / "worker" / "__init__.py"
    text = module.read_bytes()
    unchanged = _build_seconds(host)
    try:
        module.write_bytes(text + f"\n# {time.time()}\n".encode())
        changed = _build_seconds(host)
    finally:
        module.write_bytes(text)
    _build_seconds(host)
    yield Row("building again after a change of code", f"{changed:.1f} s, of it {unchanged:.1f} s without any change")


def _build_seconds(host: Host) -> float:
    began = time.monotonic()
    host.docker("compose", "build", "worker")
    return time.monotonic() - began


def run_examples(host: Host) -> Iterator[Row]:
    """Train each example under `preflight run`; yield the first line of its block, which tells the steps."""
    asked = [f"--build-arg={name}={os.environ[name]}" for name in ARGUMENTS if name in os.environ]
    for said, base in BASES.items():
        image = f"preflight-examples-{base.partition(':')[0]}"
        host.docker("build", "-f", f"{EXAMPLES}/Dockerfile", f"--build-arg=BASE_IMAGE={base}", *asked, "-t", image, ".")
        for script in SCRIPTS:
            done = host.docker.run(
                "run", "--rm", "--network", "none", "--cpus", "1", "--memory", "1g", "--entrypoint", "preflight", image,
                "run", "--", "python", script, str(STEPS),
            )  # fmt: skip
            lines = [line for line in done.err.splitlines() if line.startswith("preflight: ")]
            good = done.code == 0 and bool(lines) and re.match(rf"preflight: {STEPS} steps in ", lines[0]) is not None
            failed = f"exit code {done.code}: {done.err.strip()[-300:]}"
            shown = lines[0].removeprefix("preflight: ") if good else failed
            yield Row(f"{script} in {said}", shown, f"{STEPS} steps", good)


IMAGES: Final[Sequence[Check]] = (the_image, a_code_change, run_examples)
