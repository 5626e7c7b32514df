"""`python -m tools.faults`: try faults and print what came of them; exit code 1 when a promise was broken."""

import argparse
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Final, Literal

from tools.faults import report, rounds
from tools.faults.catalogue import CATALOGUE, Fault
from tools.faults.jobs import Verdict
from tools.faults.means import neighbours
from tools.faults.preflight import Preflight, PreflightScene
from tools.faults.rounds import Ended, Round
from tools.faults.service import S, Service
from tools.faults.stock import Stock, StockScene
from tools.faults.strikes.runs import Run

LONE_AT_ONCE: Final = 3
"""Number of scenes of stock RQ at the same time: mostly they wait in vain."""
RESULTS: Final = Path(__file__).parents[2] / "tools" / "bench" / "results" / "faults.jsonl"

Name = Literal["preflight", "stock RQ"]
Try = tuple[Round, Run[S]]
"""A round, and the run that tries it."""


def main() -> int:
    """Run the suite."""
    options = _options()
    faults = [fault for fault in CATALOGUE if not options.only or any(part in fault.name for part in options.only)]
    if options.list:
        print("\n".join(f"{fault.name}\n    {fault.does}\n    survived: {fault.survival}" for fault in faults))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    print(f"seed {options.seed}; a scene in which a promise is broken stays in {root}", flush=True)
    if options.only_stock:
        _try_stock(faults, options, root)
        return 0
    with neighbours(options.neighbours):
        _try_ours(faults, options, root)
    if options.stock:
        _stock_in_its_environment(options)
    everything, company = rounds.read(options.results), (options.neighbours, options.jobs)
    ended = rounds.of_run(everything, options.seed, _version("preflight"), company)
    rows = report.rows(faults, ended, company)
    print(f"\n{report.tables(rows)}\n")
    if options.write:
        kept = rounds.newest(everything)
        report.write(options.write, report.page(report.rows(CATALOGUE, kept), kept))
    return int(any(not verdict.survived for row in rows for verdict in row.ours))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=28, help="rounds drawn from the faults that strike at random")
    parser.add_argument("--only", action="append", metavar="NAME", help="faults whose name contains this")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="rounds at the same time")
    parser.add_argument("--neighbours", type=int, default=0, metavar="N",
                        help="busy processes beside the service, which is tried alone then")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="jobs at a time; tries the faults that strike a running job")  # fmt: skip
    parser.add_argument("--stock", type=int, default=0, metavar="N", help="try each N times on stock RQ, too")
    parser.add_argument("--stock-python", default=sys.executable, metavar="PATH", help="interpreter that has stock RQ")
    parser.add_argument("--only-stock", action="store_true", help="try stock RQ alone")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="PATH",
                        help="file of rounds: those of this version and seed in it are not made again")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="N", help="begin no round after N seconds")
    parser.add_argument("--write", type=Path, metavar="PATH", help="page to write the tables into, between markers")
    parser.add_argument("--list", action="store_true", help="only say what the faults are")
    options = parser.parse_args()
    if (options.neighbours or options.jobs > 1) and options.stock:
        parser.error("--neighbours and --jobs are for this service alone; leave out --stock")
    return options


def _try_ours(faults: Sequence[Fault], options: argparse.Namespace, root: Path) -> None:
    """Make the rounds of this service that have not been made."""
    together = options.jobs > 1
    counts = [] if together else [(fault, fault.times) for fault in faults if not fault.drawn]
    drawn = [fault for fault in faults if fault.drawn and (not together or fault.strikes_usual_job)]
    counts += [(fault, len(range(at, options.rounds, len(drawn)))) for at, fault in enumerate(drawn)]
    tries = _outstanding("preflight", counts, options)
    if tries:
        with Preflight(root, at_once=options.jobs) as service:
            service.learn()
            runs: list[Try[PreflightScene]] = [(one, fault.ours) for one, fault in tries]
            try_all(service, runs, options, options.parallel)


def _try_stock(faults: Sequence[Fault], options: argparse.Namespace, root: Path) -> None:
    """Make the rounds of stock RQ that have not been made."""
    counts = [(fault, options.stock) for fault in faults if not isinstance(fault.stock, str)]
    tries = _outstanding("stock RQ", counts, options)
    if tries:
        with Stock(root) as service:
            service.learn()
            runs: list[Try[StockScene]] = [
                (one, fault.stock) for one, fault in tries if not isinstance(fault.stock, str)
            ]
            try_all(service, runs, options, LONE_AT_ONCE)


def _stock_in_its_environment(options: argparse.Namespace) -> None:
    """Try stock RQ by an interpreter that has the newest, which need not be the one that this service runs on."""
    only = [word for name in options.only or () for word in ("--only", name)]
    subprocess.run(
        [options.stock_python, "-m", "tools.faults", "--only-stock", "--stock", str(options.stock), "--seed",
         str(options.seed), "--results", str(options.results), "--seconds", str(options.seconds), *only],
        check=True,
    )  # fmt: skip


def _outstanding(
    name: Name, counts: Sequence[tuple[Fault, int]], options: argparse.Namespace
) -> list[tuple[Round, Fault]]:
    """Return the rounds that have not been made, the first of each fault before the second of any."""
    known = {fault.name: fault for fault, _ in counts}
    of_each = [
        [
            Round(name, _version(name), options.seed, fault.name, number, options.neighbours, options.jobs)
            for number in range(count)
        ]
        for fault, count in counts
    ]
    wanted = [one for turn in zip_longest(*of_each) for one in turn if one is not None]
    left = rounds.outstanding(wanted, rounds.read(options.results))
    print(f"{name} {_version(name)}: {len(left)} of {len(wanted)} rounds are to be made", flush=True)
    return [(one, known[one.fault]) for one in left]


def _version(name: Name) -> str:
    return version("preflight-worker" if name == "preflight" else "rq")


def try_all(service: Service[S], tries: Sequence[Try[S]], options: argparse.Namespace, parallel: int) -> None:
    """Make all rounds, some at the same time; print the verdict on each, and keep it."""
    lock, done, begun = threading.Lock(), 0, time.monotonic()
    interrupted = threading.Event()
    here = rounds.machine()

    def one(number: int) -> None:
        nonlocal done
        which, run = tries[number]
        began = time.monotonic()
        if began - begun > options.seconds:
            return
        try:
            verdict = run(service, Random(f"{which.seed} {which.fault} {which.number}"))  # noqa: S311 - dice
        except Exception as error:
            # What cannot be judged has not been survived; the others shall be tried all the same.
            traceback.print_exc()
            verdict = Verdict(problems=(f"{type(error).__name__}: {error}",), lost=True)
        if interrupted.is_set():
            return  # its scene was taken away; the next run makes it again
        seconds = time.monotonic() - began
        with lock:
            done += 1
            rounds.append(options.results, Ended(which, verdict, round(seconds, 1), rounds.today(), here))
            at = f", {verdict.moment}" if verdict.moment else ""
            said = "; ".join(verdict.problems + verdict.late) or verdict.not_run or "survived"
            print(f"{done:4}/{len(tries)} {seconds:5.0f} s  {service.name}: {which.fault}{at}: {said}", flush=True)

    pool = ThreadPoolExecutor(parallel)
    try:
        list(pool.map(one, range(len(tries))))
    except KeyboardInterrupt:
        interrupted.set()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # rounds that an interrupt left behind lose their scenes


if __name__ == "__main__":
    sys.exit(main())
