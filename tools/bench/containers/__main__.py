"""`python -m tools.bench.containers`: try real containers and print the results; exit code 1: a bound was missed."""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from tools.bench.containers.checks import SERVICES
from tools.bench.containers.host import Host, Row
from tools.bench.containers.images import IMAGES
from tools.bench.containers.stack import ROOT, Docker, Failed
from tools.bench.record import Record, judged, start

CHECKS: Final = {check.__name__.replace("_", "-"): check for check in (*IMAGES, *SERVICES)}


def main() -> int:
    """Build the image from this tree, run the checks, print a line for each finding."""
    options = _options()
    docker = Docker(options.docker)
    if shutil.which(options.docker, path=f"{os.environ['PATH']}:{ROOT}") is None:
        print(f"nothing was tried: there is no {options.docker} here; name a container engine with DOCKER=")
        return 1
    (ROOT / "build").mkdir(exist_ok=True)
    host = Host(docker, options.data.resolve())
    began = time.monotonic()
    docker("compose", "build")
    print(f"docker compose build: {time.monotonic() - began:.0f} s\n")
    record = start("containers", "make containers")
    record.head("what", "found", "bound", "")
    missed = 0
    for name, check in CHECKS.items():
        if options.only and not any(part in name for part in options.only):
            continue
        try:
            for found in check(host):
                _print(found, record)
                missed += found.good is False
        except Failed as error:
            _print(Row(name, str(error), "shown", good=False), record)
            missed += 1
    print(f"\n{'everything reached' if not missed else f'{missed} missed'}; {time.monotonic() - began:.0f} s in all")
    if not options.only:
        record.write()
    return int(missed > 0)


def _print(found: Row, record: Record) -> None:
    record.row(found.what, " ".join(found.found.split()), found.bound, "" if found.good is None else judged(found.good))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.containers", description=__doc__)
    parser.add_argument("only", nargs="*", help=f"parts of the names of checks; all without: {', '.join(CHECKS)}")
    parser.add_argument("--docker", default=os.environ.get("DOCKER", "docker"), help="the docker command (DOCKER)")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PREFLIGHT_HOST_DATA", "data")),
                        help="directory with the files of MNIST (PREFLIGHT_HOST_DATA)")  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
