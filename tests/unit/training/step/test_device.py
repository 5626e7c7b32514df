"""Where a training computes: what is decided for CUDA, which cannot be tried without one, and what stays on the CPU."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.cache.plan_cache import PlanCache
from calibration.choose import choose_plan
from calibration.task import CalibrationContext, Options
from preflight.container.resources import detect
from preflight.contract.plan import Plan
from preflight.errors import InvalidConfig
from preflight.wire import JOB_TYPE, parse_job
from training.data.dataset_info import DatasetInfo
from training.process.launch import environment_for
from training.step.device import Computing, Gpu, decide

CPU = Plan(threads=2, micro_batch=64, precision="bfloat16")
CUDA = replace(CPU, device="cuda")
HOPPER, TURING = Gpu("a Hopper", (9, 0)), Gpu("a Turing", (7, 5))


def test_a_cpu_computes_in_the_precision_of_the_plan() -> None:
    """And nothing of CUDA's is switched on, whether there is a GPU or not."""
    for gpu in (None, HOPPER):
        assert decide(CPU, gpu, deterministic=False) == Computing(dtype="bfloat16")
        assert decide(replace(CPU, precision="float32"), gpu, deterministic=True) == Computing(dtype="float32")


@pytest.mark.parametrize(
    ("plan", "gpu", "deterministic", "wanted"),
    [
        (CUDA, HOPPER, False, {"dtype": "bfloat16", "benchmark": True}),
        (CUDA, Gpu("the first with bfloat16", (8, 0)), False, {"dtype": "bfloat16", "benchmark": True}),
        (CUDA, TURING, False, {"dtype": "float16", "scaled": True, "benchmark": True}),
        (CUDA, TURING, True, {"dtype": "float32"}),
        (CUDA, HOPPER, True, {"dtype": "bfloat16"}),
        (replace(CUDA, precision="float32"), TURING, False, {"dtype": "float32", "benchmark": True}),
    ],
)
def test_a_gpu_computes_as_it_can(plan: Plan, gpu: Gpu, deterministic: bool, wanted: Mapping[str, object]) -> None:
    """bfloat16 without a scaler where it has it, else float16 with one; what is not repeatable only where it may."""
    found = decide(plan, gpu, deterministic=deterministic)
    expected = {"scaled": False, "benchmark": False, "memory_fraction": 0.95, **wanted}
    assert {name: getattr(found, name) for name in expected} == expected


def test_cuda_without_a_gpu_is_refused_by_name() -> None:
    """Before anything is trained."""
    with pytest.raises(InvalidConfig, match=r"plan.device is 'cuda', but torch finds no CUDA device here") as caught:
        decide(CUDA, None, deterministic=False)
    assert caught.value.field == "plan.device"


def test_a_job_that_asks_for_it_runs_under_its_own_plan(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """Calibration measures none for a GPU, and says so."""
    job = parse_job({"type": JOB_TYPE, "dataset": "digits", "plan": {"device": "cuda"}})
    own = job.plan.complete(job.spec(), cores=2)
    around = CalibrationContext(
        resources=detect(), store=digits_store, cache=PlanCache(tmp_path), directory=tmp_path, environment={}
    )
    said: list[str] = []
    choice = choose_plan(job.spec(), own, around, Options(), lambda kind, _: said.append(kind), lambda: None)
    assert (choice.plan, choice.source, choice.trials, said) == (own, "own", 0, [])
    assert choice.plan.device == "cuda"
    assert "CPU only" in choice.why


def test_repeatable_matrix_products_are_asked_for_before_the_process_starts() -> None:
    """cuBLAS reads that from the environment."""
    assert environment_for(CUDA, {"A": "1"}) == {"A": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert environment_for(CPU, {"A": "1"}) == {"A": "1"}
