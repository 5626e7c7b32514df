"""Run a script for some seconds and write when each of its optimizer steps ended: `recorded.py OUT SECONDS SCRIPT`.

`--threads N` and `--malloc tuned` fix what `preflight run` would choose.
"""

import argparse
import array
import os
import runpy
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("script")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--begun", type=Path, help="file that is made with the first step")
    parser.add_argument("--malloc", choices=("default", "tuned"), default="default")
    options = parser.parse_args()
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    if options.malloc == "tuned":
        from preflight.tuner.settings import set_malloc

        set_malloc(tuned=True)
    ends = array.array("d")

    def on_step(optimizer: object, args: object, kwargs: object) -> None:  # noqa: ARG001 - torch's signature
        now = time.monotonic()
        ends.append(now)
        if len(ends) == 1 and options.begun:
            options.begun.touch()
        if now - ends[0] > options.seconds:
            options.out.write_bytes(ends.tobytes())
            os._exit(0)

    register_optimizer_step_post_hook(on_step)
    runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
