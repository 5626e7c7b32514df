"""Import profile: the slowest imports of each entry point, and packages that it must not import.

`make import-profile`. Each is a fresh interpreter under `-X importtime`; the milliseconds leave out a module's own
imports. Exit code 1 when a forbidden package is imported.
"""

import subprocess
import sys
from dataclasses import dataclass
from typing import Final

SLOWEST: Final = 10
HEAVY: Final = ("torch", "numpy", "torchvision", "safetensors")
REDIS: Final = ("redis", "rq")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry point."""

    name: str
    program: str
    without: tuple[str, ...]
    """Packages that it must do without."""


ENTRIES: Final = (
    Entry("preflight --help", "from preflight.cli.app import main; main(['--help'], standalone_mode=False)",
          (*HEAVY, *REDIS, "pydantic")),
    Entry("a job that is refused",
          "from contextlib import suppress\nfrom preflight.cli.app import main\n"
          "with suppress(SystemExit): main(['train', '--epochs', '0'], standalone_mode=False)",
          (*HEAVY, *REDIS)),
    Entry("from preflight import Client", "from preflight import Client", (*HEAVY, *REDIS)),
    Entry("preflight worker, up to its start", "import worker.queue.service", HEAVY),
    Entry("preflight train, up to its children", "import worker.jobs.local.training", HEAVY),
    Entry("training child, up to torch", "import training.loop.child", (*HEAVY, *REDIS)),
    Entry("measuring child, up to torch", "import calibration.measure.child", (*HEAVY, *REDIS)),
    Entry("training child, torch and all",
          "import training.loop.trainer, training.checkpoints.checkpointer, training.data.dataset_store",
          ("torch._dynamo", "torch._inductor", "torchvision", "scipy", *REDIS)),
)  # fmt: skip


def main() -> int:
    """Measure and print; return the exit code."""
    intruders: list[str] = []
    for entry in ENTRIES:
        costs = _imports(entry.program)
        loaded = {name for name in entry.without if name in costs}
        intruders += [f"{entry.name} imports {name}" for name in sorted(loaded)]
        print(f"\n## {entry.name}: {sum(costs.values()):,.0f} ms in {len(costs):,} modules\n")
        print("| module | own ms |\n|---|---|")
        for name in sorted(costs, key=lambda name: costs[name], reverse=True)[:SLOWEST]:
            print(f"| {name} | {costs[name]:.1f} |")
    for intruder in intruders:
        print(f"\n{intruder}, but must not: import it where it is needed", file=sys.stderr)
    return 1 if intruders else 0


def _imports(program: str) -> dict[str, float]:
    """Return module -> own milliseconds of all that `program` imports, the interpreter's start included."""
    done = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", "-c", program],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    costs: dict[str, float] = {}
    for line in done.stderr.splitlines():
        own, _, rest = line.removeprefix("import time:").partition("|")
        if line.startswith("import time:") and own.strip().isdecimal():
            name = rest.rpartition("|")[2].strip()
            costs[name] = costs.get(name, 0) + int(own) / 1000
    return costs


if __name__ == "__main__":
    sys.exit(main())
