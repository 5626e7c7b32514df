"""Answers about a picture: of a process that is kept, and of a fresh one each time.

python -m bench.predict artifacts/my-first seven.png
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from training.artifacts.onnx_child import ONNX
from worker.config.settings import child_environment
from worker.jobs.local.predict import predict_local
from worker.jobs.local.predictor import Predictor

QUESTIONS = 10


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main(model: Path, picture: Path) -> None:
    content, kept = picture.read_bytes(), Predictor(child_environment())
    first = timed(lambda: kept.predict(model, content))
    later = [timed(lambda: kept.predict(model, content)) for _ in range(QUESTIONS)]
    (child,) = psutil.Process().children()
    memory = child.memory_full_info().uss >> 20
    kept.close()
    fresh = [timed(lambda: [*predict_local(model, [picture])]) for _ in range(3)]
    print(f"kept: first {first:.3f} s, then {statistics.median(later):.4f} s, {memory} MiB of its own")
    print(f"fresh: {statistics.median(fresh):.3f} s")
    if (model / ONNX).is_file():
        exported = [timed(lambda: [*predict_local(model / ONNX, [picture])]) for _ in range(3)]
        print(f"fresh, with onnxruntime: {statistics.median(exported):.3f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
