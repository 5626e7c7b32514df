"""`preflight profile`: real steps of one configuration, and where their time goes; short trainings by the command."""

import json
import re
from dataclasses import replace

import pytest
from support.calibration.findings import FINDING
from support.worker.command_line import assert_one_sentence, run

from calibration.cache.plan_cache import PlanCache
from calibration.cache.signature import signature
from preflight.container.resources import detect
from preflight.contract.plan import Plan
from preflight.wire import JOB_TYPE, StepProfile, parse_job
from training.data.prepare import prepare
from training.step.profiler import PHASES
from worker.config.settings import load

PROFILE = ("profile", "--dataset", "digits", "--warm-up", "3", "--steps", "25")
pytestmark = [pytest.mark.usefixtures("command_environment"), pytest.mark.process]


@pytest.mark.slow
def test_the_phases_of_the_measured_steps_make_their_time() -> None:
    """The warm-up is told apart, 28 steps of epochs of 10; neither validation nor checkpoints are among them."""
    sizes = ("plan.threads=1", "plan.micro_batch=32")
    done = run(*PROFILE, "--json", *(part for size in sizes for part in ("--set", size)))
    assert done.exit_code == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    measured, warm_up = (StepProfile.model_validate(found[name]) for name in ("measured", "warm_up"))
    assert (measured.steps, warm_up.steps) == (25, 3)
    for profile in (measured, warm_up):
        seconds = {phase: getattr(profile, f"{phase}_s") for phase in PHASES}
        assert sum(seconds.values()) == pytest.approx(profile.total_s)
        assert all(seconds[phase] > 0 for phase in ("data", "forward", "loss", "backward", "optimizer"))
        assert seconds["validation"] == seconds["checkpoint"] == seconds["transfer"] == 0
    assert 0 < found["median_step_s"] <= found["slowest_step_s"] <= measured.total_s
    assert measured.average_batch_s == pytest.approx(measured.total_s / 25)
    assert found["import_s"] > 0
    assert found["epoch_steps"] == 10
    assert found["epoch_s"] == pytest.approx(10 * measured.average_batch_s + found["validation_s"])
    assert (found["plan"]["threads"], found["plan"]["micro_batch"], found["batch_size"]) == (1, 32, 128)


def test_the_table_has_a_row_for_each_phase_of_a_step() -> None:
    done = run(*PROFILE)
    assert done.exit_code == 0, done.stderr
    head, table, *_ = done.stdout.split("\n\n")
    assert head.startswith("cnn on digits, batch 128: ")
    rows = [row.split() for row in table.splitlines()]
    assert [row[0] for row in rows] == ["PHASE", "data", "forward", "loss", "backward", "optimizer", "other", "all"]
    assert sum(float(row[1]) for row in rows[1:-1]) == pytest.approx(float(rows[-1][1]), abs=0.01)
    assert sum(float(row[3]) for row in rows[1:-1]) == pytest.approx(float(rows[-1][3]), abs=0.01)
    assert "\n25 steps in " in done.stdout
    assert re.search(r"\nan epoch takes about \d+\.\d\d s: 10 steps, and 0\.\d\d s of validation\n", done.stdout)
    assert "\nbefore them 3 warm-up steps in " in done.stdout


@pytest.mark.slow
def test_calibration_chooses_the_plan_only_where_it_is_asked_to() -> None:
    """By default the plan is the job's own, whatever is cached for it."""
    settings = load()
    store = prepare("digits", settings.data_dir, settings.cache_dir, download=False)
    job, resources = parse_job({"type": JOB_TYPE, "dataset": "digits"}), detect()
    key = signature(job.spec(), job.plan.complete(job.spec(), resources.cores), resources, store)
    finding = replace(FINDING, plan=Plan(threads=1, micro_batch=16))
    assert PlanCache(settings.cache_dir).put(key, finding) is None
    own, chosen = (run(*PROFILE, "--json", *more) for more in ((), ("--calibrate",)))
    assert json.loads(own.stdout)["plan"]["micro_batch"] == 128
    assert json.loads(chosen.stdout)["plan"]["micro_batch"] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "0"), "--steps is '0', but must be a whole number of at least 1 and at most 1000000"),
        (("--warm-up", "a"), "--warm-up is 'a', but must be a whole number of at least 1 and at most 1000000"),
        (("--train-samples", "9"), "train_samples is 9, less than a batch of 128; use at least 128"),
    ],
)
def test_mistakes_are_one_sentence(options: tuple[str, str], message: str) -> None:
    done = run(*PROFILE, *options)
    assert assert_one_sentence(done, 2) == f"preflight: {message}\n"


@pytest.mark.slow
def test_a_short_training_says_how_many_steps_it_took() -> None:
    """Of epochs of 10 steps it takes one and a half; the model is published, validation and test included."""
    short = ("train", "--dataset", "digits", "--no-calibrate", "--json", "--epochs", "3")
    done = run(*short, "--max-steps", "15")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["train_steps"], result["epochs"], result["stopped_early"]) == (15, 2, False)
    assert 0 < result["test_accuracy"] <= 1
    few = json.loads(run(*short, "--train-samples", "256").stdout)
    assert (few["train_steps"], few["epochs"]) == (6, 3)
