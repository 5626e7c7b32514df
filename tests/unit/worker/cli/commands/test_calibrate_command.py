"""`preflight calibrate` and `preflight cache` on a cached result; nothing is measured here."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue, TypeAdapter
from support.calibration.findings import FINDING, doubtful
from support.worker.command_line import assert_one_sentence, run

from calibration.cache.plan_cache import PlanCache
from calibration.cache.signature import Signature, signature
from calibration.result import Trial
from preflight.cli.formatting.events import format_event
from preflight.container.resources import detect
from preflight.contract.spec import DEFAULTS
from preflight.numbers import format_age, plural
from preflight.wire import EVENT, JOB_TYPE, CalibrationTrial, parse_job
from training.data.prepare import prepare
from training.data.split import split
from worker.config.settings import load
from worker.jobs.stages.payloads import trial_payload

JOB: dict[str, JsonValue] = {"type": JOB_TYPE, "dataset": "digits", "model": "cnn"}
TRIAL = TypeAdapter(Trial)
CALIBRATE = ("calibrate", "--dataset", "digits")
ELSEWHERE = Signature(
    hardware={}, limits={"cores": 4, "memory_bytes": 1 << 30}, software={},
    workload={"dataset": "mnist\x1b[2J", "model": "resnet18", "batch_size": 64}, search={},
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("command_environment")


@pytest.fixture
def cache(command_environment: None) -> PlanCache:  # noqa: ARG001 - it sets the directories
    """The cache of the commands, with a result for the default job on digits, in this container."""
    settings = load()
    store = prepare("digits", settings.data_dir, settings.cache_dir, download=False)
    job, resources = parse_job(JOB), detect()
    cache = PlanCache(settings.cache_dir)
    key = signature(job.spec(), job.plan.complete(job.spec(), resources.cores), resources, store)
    assert cache.put(key, FINDING) is None
    return cache


@pytest.fixture
def same_length(cache: PlanCache) -> None:
    """Have the result in the cache be one for epochs as long as those of the job."""
    store, spec = prepare("digits", load().data_dir, load().cache_dir, download=False), parse_job(JOB).spec()
    key = signature(spec, parse_job(JOB).plan.complete(spec, detect().cores), detect(), store)
    assert cache.put(key, replace(FINDING, steps_per_epoch=split(spec, store).steps)) is None


@pytest.mark.usefixtures("same_length")
def test_json_is_one_object_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a hit it has the cached trials, and the event `calibration_winner` of the log the cached prediction."""
    monkeypatch.setenv("PREFLIGHT_LOG_FORMAT", "json")
    result = run(*CALIBRATE, "--json")
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert (found["cache"], found["source"], found["confidence"]) == ("hit", "cache", "high")
    assert (found["plan"]["precision"], found["baseline"]["precision"]) == ("bfloat16", "float32")
    assert (found["predicted_low_s"], found["predicted_high_s"], found["max_feasible"]) == (4.5, 4.9, 128)
    assert found["predicted_epoch_s"] == pytest.approx(4.7)  # 0.4 s of warming up in the only epoch: they hold it, too
    assert {"calibration_seconds", "import_seconds"} <= set(found)
    assert [trial["verdict"] for trial in found["trials"]] == ["own", "won", "won", "dropped", "level", "skipped"]
    assert (found["trials"][1]["knob"], found["trials"][1]["low"]) == ("allocator", 1.55)
    assert found["confirmation"]["proven"] is True
    assert 0 <= found["cache_age_s"] < 60
    records = [json.loads(line) for line in result.stderr.splitlines()]
    (winner,) = [record for record in records if record["event"] == "calibration_winner"]
    expected = {"cache": "hit", "confidence": "high", "ratio": 2.02, "max_feasible": 128, "predicted_low_s": 4.5}
    assert winner | expected == winner
    (advice,) = [record for record in records if record["event"] == "batch_advice"]
    expected = {"batch_size": 128, "advised": 512, "advised_ratio": 1.7, "largest_measured": 512}
    assert advice | expected == advice
    assert advice["message"].startswith("Batch 512 would fit (410 MiB of 1,024) and train 1.7 times")
    assert found["advice"]["advised"] == 512


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "short", [("--max-steps", "5"), ("--train-samples", "640"), ("--epochs", "2", "--max-steps", "15")]
)
def test_a_short_training_is_served_by_what_was_found_for_whole_epochs(short: tuple[str, ...]) -> None:
    """Its prediction is that of its own steps: five of an epoch, or one and a half epochs of ten."""
    found = json.loads(run(*CALIBRATE, "--json", *short).stdout)
    assert (found["cache"], found["plan"]["precision"]) == ("hit", FINDING.plan.precision)
    steps, epochs = (15, 2) if "15" in short else (5, 1)
    predicted = FINDING.prediction
    total = steps * predicted.step_s + epochs * predicted.validation_s + predicted.warm_s
    assert found["predicted_epoch_s"] == pytest.approx(total / epochs)


def test_a_trial_becomes_an_event() -> None:
    """Fields of a trial that the wire format does not have are left out."""
    spec = parse_job(JOB).spec()
    head = {"type": "calibration_trial", "seq": 1, "job_id": "j", "attempt": 1, "ts": 1.0}
    events = [
        EVENT.validate_python({**head, **trial_payload(spec, TRIAL.dump_python(one), 45.0)}) for one in FINDING.trials
    ]
    own, won, *_, skipped = events
    assert isinstance(own, CalibrationTrial)
    assert own.left_s == 43.0
    assert (own.won, own.verdict, own.samples_per_s) == (False, "own", spec.batch_size / 0.02)
    assert isinstance(won, CalibrationTrial)
    assert (won.won, won.ratio, won.low, won.peak_bytes) == (True, 1.6, 1.55, 420 << 20)
    assert won.plan().allocator == "tcmalloc"
    assert isinstance(skipped, CalibrationTrial)
    assert (skipped.knob, skipped.samples_per_s, skipped.plan().compile) == ("compile", None, True)
    assert [format_event(event) for event in (won, skipped)] == [
        "Trial of allocator (2 threads, float32, tcmalloc) won, 1.60x as fast as the best plan before it "
        "(1.55x to 1.66x), 10,240 samples/s.",
        None,
    ]


@pytest.mark.usefixtures("same_length")
def test_explain_prints_everything() -> None:
    """Container, baseline, each trial with its reason, memory, confirmation, prediction, cache."""
    text = run(*CALIBRATE, "--explain").stdout
    for words in (
        "cpu          ", "memory limit ", f"cnn on digits, {plural(DEFAULTS.epochs, 'epoch')}", "hit, measured ",
        "your plan    2 threads, float32, contiguous, default malloc, micro-batch 128", "tcmalloc",
        "1.60x   1.55 to 1.66",
        "bfloat16, channels_last", "slower (95 %), stopped early (3 steps)", "no compiler is installed",
        "disturbed, measured earlier", "230 MiB + 1.250 MiB per sample",
        "predicted 390 MiB, measured 380 MiB, within the limit", "Largest micro-batch that fits: 128, the whole batch",
        "1.70x  1.62-1.74  21,760", "above 85% of 1,024",
        "Batch 512 would fit (410 MiB of 1,024) and train 1.7 times as many samples a second; it changes what is "
        "learned, so it is yours to choose.",
        "2.02x (1.93x to 2.11x) compared with your plan", "4.3 s an epoch (4.1 to 4.5)", "confidence   high",
        "confirmed    bfloat16, channels_last, tcmalloc  2.02x",
        "took         nothing now; 18.2 s when it was measured, of them 1.30 s to start processes and import torch",
    ):  # fmt: skip
        assert words in text, words
    assert [line for line in text.splitlines() if line != line.rstrip() or len(line) >= 160] == []


@pytest.mark.usefixtures("cache")
def test_the_short_text_has_trials_plan_and_prediction() -> None:
    text = run(*CALIBRATE).stdout
    assert "won        5.38 s/epoch  2 threads, float32, tcmalloc  1.60x (1.55x to" in text
    assert "plan       2 threads, bfloat16, channels_last, tcmalloc (the rest under --explain)" in text
    assert "4.3 s an epoch (4.1 to 4.5)" in text


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("form", ["--explain", "--json", None])
def test_without_a_measurement_there_is_still_a_plan(form: str | None) -> None:
    """Calibration is off: the job's own plan and the reason."""
    result = run(*CALIBRATE, "--no-calibrate", *([form] if form else []))
    assert result.exit_code == 0
    assert "calibration is off" in result.stdout
    if form == "--json":
        found = json.loads(result.stdout)
        assert (found["trials"], found["confidence"], found["max_feasible"], found["cache"]) == ([], None, None, "off")


def test_a_result_without_memory_and_confirmation_is_explained(cache: PlanCache) -> None:
    (entry,) = cache.entries()
    path = entry.path
    kept = json.loads(path.read_text())
    other = PlanCache(path.parents[1] / "other")
    other.put(ELSEWHERE, doubtful())
    path.write_text(json.dumps({**kept, "finding": json.loads(other.entries()[0].path.read_text())["finding"]}))
    text = run(*CALIBRATE, "--explain").stdout
    assert "memory       not measured" in text
    assert "confirmed    nothing" in text
    assert json.loads(run(*CALIBRATE, "--json").stdout)["max_feasible"] is None


@pytest.mark.parametrize(("arguments", "words"), [
    (["--report", "nowhere/page.html"], "--report nowhere/page.html cannot be written"),
    (["--report", "x" * 300], "cannot be written"),
    (["--report", "."], "--report . cannot be written"),
    (["--report", "page.html", "--no-calibrate"], "calibration is off"),
])  # fmt: skip
def test_an_impossible_report_exits_with_2(arguments: list[str], words: str) -> None:
    """Before anything is measured."""
    assert words in assert_one_sentence(run("calibrate", *arguments), 2)


@pytest.mark.usefixtures("cache")
def test_the_report_replaces_an_older_one(tmp_path: Path) -> None:
    """Atomically, beside the printed result."""
    page = tmp_path / "page.html"
    page.write_text("older")
    result = run(*CALIBRATE, "--json", "--report", str(page))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["cache"] == "hit"
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "cnn on digits" in text
    assert [path.name for path in tmp_path.iterdir() if "page" in path.name] == ["page.html"]


@pytest.mark.usefixtures("cache")
def test_an_unwritable_report_exits_with_2(tmp_path: Path) -> None:
    """The plan is printed; the temporary file's name is too long."""
    result = run(*CALIBRATE, "--json", "--report", str(tmp_path / ("x" * 250)))
    assert result.exit_code == 2
    assert json.loads(result.stdout)["cache"] == "hit"
    assert "cannot be written (File name too long); name another file" in result.stderr


def test_the_list_shows_the_entries(cache: PlanCache) -> None:
    """Newest first, unusable entries last, control characters escaped."""
    cache.put(ELSEWHERE, doubtful())
    (load().cache_dir / "plans" / "feedbeef.json").write_text("{")
    head, first, second, last = run("cache", "list").stdout.splitlines()
    assert head.split() == ["KEY", "DATASET", "MODEL", "BATCH", "S/EPOCH", "CONFIDENCE", "AGE", "EXPIRES", "IN", "PLAN"]
    assert first.split()[:6] == [ELSEWHERE.key[:12], r"mnist\x1b[2J", "resnet18", "64", "4.30", "low"]
    assert second.split()[1:6] == ["digits", "cnn", str(DEFAULTS.batch_size), "4.30", "high"]
    assert second.endswith("2 threads, bfloat16, channels_last, tcmalloc")
    assert "7 d" in second
    assert "feedbeef" in last
    assert "is damaged or of another version" in last


@pytest.mark.usefixtures("cache")
def test_the_list_as_json() -> None:
    (load().cache_dir / "plans" / "feedbeef.json").write_text("{")
    kept, damaged = map(json.loads, run("cache", "list", "--json").stdout.splitlines())
    assert (kept["dataset"], kept["model"], kept["predicted_epoch_s"]) == ("digits", "cnn", 4.3)
    assert kept["age_s"] + kept["expires_in_s"] == pytest.approx(7 * 86_400, abs=1)
    assert (len(kept["key"]), kept["expired"], kept["fault"]) == (32, False, None)
    assert damaged["fault"] == "is damaged or of another version"


def test_an_expired_entry_is_listed_as_such(cache: PlanCache) -> None:
    (entry,) = cache.entries()
    old = {**json.loads(entry.path.read_text()), "created": time.time() - 8 * 86_400}
    entry.path.write_text(json.dumps(old))
    line = run("cache", "list").stdout.splitlines()[1]
    assert line.split()[6:9] == ["8", "d", "expired"]
    assert json.loads(run("cache", "list", "--json").stdout)["expired"] is True


def test_an_empty_cache_is_no_error() -> None:
    assert run("cache", "list").stdout == "no plans\n"
    assert run("cache", "list", "--json").stdout == ""
    assert run("cache", "clear").stdout == "0 cleared\n"


def test_clear_deletes_keys_or_everything(cache: PlanCache) -> None:
    """By prefix; the cached data sets stay."""
    cache.put(ELSEWHERE, doubtful())
    assert run("cache", "clear", ELSEWHERE.key[:12]).stdout == "1 cleared\n"
    assert [entry.key for entry in cache.entries() if entry.key == ELSEWHERE.key] == []
    cache.put(ELSEWHERE, doubtful())
    assert run("cache", "clear").stdout == "2 cleared\n"
    assert cache.entries() == []
    assert prepare("digits", load().data_dir, load().cache_dir, download=False).name == "digits"


@pytest.mark.usefixtures("cache")
def test_clear_rejects_unknown_and_ambiguous_keys() -> None:
    """Exit code 2, and nothing is deleted, not even the known keys."""
    plans = load().cache_dir / "plans"
    for name in ("feedbeef", "feedface"):
        (plans / f"{name}.json").touch()
    assert "key 'nope' is not in the cache" in assert_one_sentence(run("cache", "clear", "feedbeef", "nope"), 2)
    assert "key '' is not in the cache" in assert_one_sentence(run("cache", "clear", ""), 2)
    assert "key 'feed' matches 2 keys of the cache" in assert_one_sentence(run("cache", "clear", "feed"), 2)
    assert len(list(plans.iterdir())) == 3


def test_an_undeletable_entry_exits_with_1() -> None:
    """A directory with the name of an entry is listed and not cleared."""
    (load().cache_dir / "plans" / "feedbeef.json").mkdir(parents=True)
    assert "not a regular file" in run("cache", "list").stdout
    error = assert_one_sentence(run("cache", "clear"), 1)
    assert f"the plan cache in {load().cache_dir} cannot be read or cleared" in error


@pytest.mark.usefixtures("cache")
def test_a_hit_loads_no_torch() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from preflight.cli.app import main;"
        f"done = CliRunner().invoke(main, {[*CALIBRATE, '--explain']!r});"
        "print(done.exit_code, *sorted({'torch', 'numpy', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "120 min"), (7_200, "2 h"), (172_800, "2 d")],
)
def test_ages_are_short(seconds: float, words: str) -> None:
    """In the largest unit of which there are two."""
    assert format_age(seconds) == words
