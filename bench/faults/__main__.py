"""`python -m bench.faults`: try faults and print what came of them; exit code 1 when a promise was broken."""

import argparse
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Final

from bench.faults import report
from bench.faults.catalogue import CATALOGUE
from bench.faults.preflight import CHECKPOINT_SECONDS, SLACK_SECONDS, Preflight, PreflightScene
from bench.faults.report import Row
from bench.faults.scene import S, Service, Verdict
from bench.faults.stock import BEYOND, Stock
from bench.faults.strikes import Run

LONE_AT_ONCE: Final = 3
"""Scenes of stock RQ at the same time: mostly they wait for what does not come."""

Try = tuple[str, Run[S], list[Verdict]]
"""Name of a fault, how it is tried, and where the verdict goes."""


def main() -> int:
    """Run the suite."""
    options = _options()
    faults = [fault for fault in CATALOGUE if not options.only or any(part in fault.name for part in options.only)]
    if options.list:
        print("\n".join(f"{fault.name}\n    {fault.does}\n    survived: {fault.survival}" for fault in faults))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = [Row(fault) for fault in faults]
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    print(f"seed {options.seed}; a scene in which a promise is broken stays in {root}", flush=True)
    began = time.monotonic()
    with Preflight(root) as service:
        service.learn()
        _try_all(service, _ours(rows, options.rounds, Random(options.seed)), options.seed, options.parallel)  # noqa: S311 - dice
    if options.stock:
        with Stock(root) as stock:
            stock.learn()
            lone = [(row.fault.name, row.fault.stock, row.stock) for row in rows for _ in range(options.stock)]
            tries = [(name, run, verdicts) for name, run, verdicts in lone if not isinstance(run, str)]
            _try_all(stock, tries, options.seed, LONE_AT_ONCE)
    print(f"\n{report.table(rows, stock=bool(options.stock))}\n\n{report.moments(rows)}\n")
    print(f"Work lost: seconds of training done again; checkpoints every {CHECKPOINT_SECONDS:g} s, and up to "
          f"{SLACK_SECONDS:g} s are allowed for writing and measuring.")  # fmt: skip
    print(f"preflight: {report.sums(rows, lambda row: row.ours)}; {time.monotonic() - began:.0f} s in all")
    if options.stock:
        print(f"stock RQ: {report.sums(rows, lambda row: row.stock)}; "
              f"a job that has not ended {BEYOND:.0f} s after its time counts as lost")  # fmt: skip
    return int(any(not verdict.survived for row in rows for verdict in row.ours))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=28, help="rounds drawn from the faults that strike at random")
    parser.add_argument("--only", action="append", metavar="NAME", help="faults whose name contains this")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="rounds at the same time")
    parser.add_argument("--stock", type=int, nargs="?", const=2, metavar="N", help="try each N times on stock RQ, too")
    parser.add_argument("--list", action="store_true", help="only say what the faults are")
    return parser.parse_args()


def _ours(rows: Sequence[Row], rounds: int, random: Random) -> list[Try[PreflightScene]]:
    """Return what is tried on this service, in random order."""
    chosen = [row for row in rows if not row.fault.drawn for _ in range(row.fault.times)]
    drawn = [row for row in rows if row.fault.drawn]
    while drawn and rounds > 0:  # each as often as the others
        chosen += random.sample(drawn, min(rounds, len(drawn)))
        rounds -= len(drawn)
    return [(row.fault.name, row.fault.ours, row.ours) for row in random.sample(chosen, len(chosen))]


def _try_all(service: Service[S], tries: Sequence[Try[S]], seed: int, parallel: int) -> None:
    """Try everything, some at the same time, and say what came of each."""
    lock, done = threading.Lock(), 0

    def one(number: int) -> None:
        nonlocal done
        name, run, verdicts = tries[number]
        began = time.monotonic()
        try:
            verdict = run(service, Random(f"{seed} {number}"))  # noqa: S311 - dice
        except Exception as error:
            # What cannot be judged has not been survived; the others shall be tried all the same.
            traceback.print_exc()
            verdict = Verdict(problems=(f"{type(error).__name__}: {error}",), lost=True)
        with lock:
            done += 1
            verdicts.append(verdict)
            at = f", {verdict.moment}" if verdict.moment else ""
            said = "; ".join(verdict.problems + verdict.late) or verdict.not_run or "survived"
            print(
                f"{done:4}/{len(tries)} {time.monotonic() - began:5.0f} s  {service.name}: {name}{at}: {said}",
                flush=True,
            )

    pool = ThreadPoolExecutor(parallel)
    try:
        list(pool.map(one, range(len(tries))))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # rounds that an interrupt left behind lose their scenes


if __name__ == "__main__":
    sys.exit(main())
