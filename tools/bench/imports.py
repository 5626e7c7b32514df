"""Import profile: the slowest imports of each entry point, and packages that it must not import.

`make import-profile`. Each is a fresh interpreter under `-X importtime`. Own milliseconds leave out what a module
imports, cumulative ones have it; the chain is who imports it. Exit code 1 when a forbidden package is imported.
"""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Final

SLOWEST: Final = 10
LARGEST: Final = 6
"""Most categories that are printed."""
OURS: Final = ("preflight", "worker", "training", "calibration")
LINE: Final = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| ((?:  )*)(\S+)")
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


@dataclass(frozen=True, slots=True)
class Imported:
    """A module that an entry point imports."""

    name: str
    own_ms: float
    all_ms: float
    """Milliseconds with the modules that it is the first to import."""
    chain: tuple[str, ...]
    """The modules that import it, the outermost first."""

    @property
    def category(self) -> str:
        """Return `ours`, `standard library` or the package of others that it is of."""
        package = self.name.partition(".")[0]
        if package in OURS:
            return "ours"
        return "standard library" if package in sys.stdlib_module_names else package


def main() -> int:
    """Measure and print; return the exit code."""
    intruders: list[str] = []
    for entry in ENTRIES:
        found = parse(_importtime(entry.program))
        names = {module.name for module in found}
        intruders += [f"{entry.name} imports {name}" for name in entry.without if name in names]
        print(f"\n## {entry.name}: {sum(module.own_ms for module in found):,.0f} ms in {len(found):,} modules\n")
        categories: Counter[str] = Counter()
        for module in found:
            categories[module.category] += round(1000 * module.own_ms)
        largest = (f"{name} {spent / 1000:,.0f} ms" for name, spent in categories.most_common(LARGEST))
        print(f"{'; '.join(largest)}\n")
        print("| module | category | own ms | cumulative ms | imported by |\n|---|---|---|---|---|")
        for module in sorted(found, key=lambda module: module.own_ms, reverse=True)[:SLOWEST]:
            cells = module.name, module.category, f"{module.own_ms:.1f}", f"{module.all_ms:.1f}"
            print(f"| {' | '.join(cells)} | {' > '.join(module.chain) or 'the entry point'} |")
    for intruder in intruders:
        print(f"\n{intruder}, but must not: import it where it is needed", file=sys.stderr)
    return 1 if intruders else 0


def _importtime(program: str) -> str:
    """Return the interpreter's report on all imports of `program`, its own start included."""
    return subprocess.run(
        [sys.executable, "-P", "-X", "importtime", "-c", program],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True,
    ).stderr  # fmt: skip


def parse(text: str) -> list[Imported]:
    """Return the modules in the output of `-X importtime`, which has a module below those that it imports."""
    lines = (LINE.fullmatch(line) for line in text.splitlines())
    found: list[Imported] = []
    chain: list[str] = []
    for match in reversed([line for line in lines if line]):
        own, cumulative, indent, name = match.groups()
        del chain[len(indent) // 2 :]
        found.append(Imported(name, int(own) / 1000, int(cumulative) / 1000, tuple(chain)))
        chain.append(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
