"""Break the code under the most important promises, one line at a time, and see the tests fail that hold them.

    PYTHONPATH=tests python -m tools.mutations [WORDS]

Works on a copy of the tracked files; WORDS choose the promises whose sentence has one of them. Ends with 1 where a
mutation survives. `tests/repository/test_mutations.py` holds that each line and each test is still there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TIMEOUT_SECONDS: Final = 1_800
FAILED: Final = 1
"""Exit code of pytest where a test failed, and no other."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A line without which a promise is broken."""

    promise: str
    path: str
    line: str
    """Part of a line that stands once in the file."""
    broken: str
    """What takes its place."""
    test: str
    """Node id of the test that has to fail."""


SCRIPTS: Final = "client/preflight/redis/scripts/fencing"
FENCING: Final = "tests/integration/worker/broker/test_fencing.py"
CHECKPOINT: Final = "tests/unit/training/checkpoints/test_checkpoint.py"
ARTIFACT: Final = "tests/unit/training/artifacts/test_artifact.py"
PIPELINE: Final = "tests/unit/worker/jobs/test_pipeline.py"
SEARCH: Final = "tests/unit/calibration/search/test_search.py"
MUTATIONS: Final = (
    Mutation(
        "a superseded attempt writes nothing", "client/preflight/redis/scripts/shared/guard.lua",
        "if newest > attempt then", "if false then",
        f"{FENCING}::test_a_superseded_attempt_writes_nothing_at_all",
    ),
    Mutation(
        "each event is published once", f"{SCRIPTS}/publish.lua",
        "if event.seq > last(event.attempt) then", "if true then",
        f"{FENCING}::test_each_event_is_published_once_and_in_order",
    ),
    Mutation(
        "events that Redis lost are published again", f"{SCRIPTS}/publish.lua",
        "if last(of) < seq then", "if false then",
        "tests/integration/worker/events/test_redis_sink.py::test_an_emptied_redis_gets_all_events_again",
    ),
    Mutation(
        "events of a dead attempt are published first", "worker/events/redis_sink.py",
        "self._pending = deque(spool.replay())", "self._pending = deque[SpooledEvent]()",
        "tests/integration/worker/events/test_redis_sink.py::test_events_of_a_dead_attempt_are_published_first",
    ),
    Mutation(
        "an id is trained by one worker at a time", f"{SCRIPTS}/claim.lua",
        "if holder then", "if false then",
        f"{FENCING}::test_a_running_job_is_busy_for_other_owners",
    ),
    Mutation(
        "a finished job is not trained again", f"{SCRIPTS}/claim.lua",
        "if redis.call('EXISTS', result) == 1 then", "if false then",
        f"{FENCING}::test_a_finished_job_is_not_claimed",
    ),
    Mutation(
        "an id belongs to one request", f"{SCRIPTS}/claim.lua",
        "if bound and bound ~= request then", "if false then",
        f"{FENCING}::test_an_id_belongs_to_one_request",
    ),
    Mutation(
        "a job that kills its workers is quarantined", f"{SCRIPTS}/claim.lua",
        "if deaths >= tonumber(ARGV[3]) then", "if false then",
        f"{FENCING}::test_a_job_is_poisoned_after_its_maximum_of_deaths",
    ),
    Mutation(
        "a job whose lease is renewed is not reclaimed", f"{SCRIPTS}/requeue.lua",
        "elseif (redis.call('GET', lease) or '') ~= token then", "elseif false then",
        f"{FENCING}::test_a_job_with_a_newer_lease_is_not_reclaimed",
    ),
    Mutation(
        "a job that is given back is the next one", f"{SCRIPTS}/requeue.lua",
        "side == 'front' and 'LPUSH' or 'RPUSH'", "'RPUSH'",
        f"{FENCING}::test_a_requeued_job_waits",
    ),
    Mutation(
        "no other function of a message is run", "worker/admission/admit.py",
        "if job.func_name not in ALLOWED_FUNCTIONS:", "if False:",
        "tests/unit/worker/admission/test_admission.py::test_only_one_function_is_allowed",
    ),
    Mutation(
        "a forged signature is refused", "client/preflight/queue/signing.py",
        'return hmac.compare_digest(sign(job, terms, key).encode(), signature.encode(errors="replace"))',
        "return bool(sign(job, terms, key))",
        "tests/unit/preflight/queue/test_signing.py::test_nothing_else_verifies",
    ),
    Mutation(
        "without the token the web service tells nothing", "worker/web/auth.py",
        "hmac.compare_digest(given, self._token)", "given",
        "tests/integration/worker/web/test_server.py::test_a_token_is_needed_where_there_is_one",
    ),
    Mutation(
        "a damaged checkpoint is not used", "training/checkpoints/format.py",
        "if digests.sha256(file) != checkpoint.tensors_sha256:", "if False:",
        f"{CHECKPOINT}::test_damaged_checkpoints_are_skipped",
    ),
    Mutation(
        "a checkpoint of other data is not used", "training/checkpoints/format.py",
        "if checkpoint.data_sha256 != data_sha256:", "if False:",
        f"{CHECKPOINT}::test_checkpoints_of_another_spec_or_other_data_are_skipped",
    ),
    Mutation(
        "a training resumes from the newest checkpoint", "training/checkpoints/resume.py",
        "found.sort(key=lambda each: each[:2], reverse=True)", "found.sort(key=lambda each: each[:2])",
        f"{CHECKPOINT}::test_checkpointer_skips_damaged_checkpoints",
    ),
    Mutation(
        "the micro-batch is halved where memory runs out", "worker/jobs/stages/training.py",
        "micro_batch=max(1, plan.micro_batch // 2)", "micro_batch=plan.micro_batch",
        f"{PIPELINE}::test_the_micro_batch_is_halved_where_memory_runs_out",
    ),
    Mutation(
        "it is halved three times at most", "worker/jobs/stages/training.py",
        "if smaller is None or halvings == MAX_HALVINGS:", "if smaller is None:",
        f"{PIPELINE}::test_the_micro_batch_is_halved_three_times_at_most",
    ),
    Mutation(
        "a full disk is refused before the training", "training/system/disk_space.py",
        "if needed > free:", "if False:",
        "tests/integration/training/checkpoints/test_checkpoints.py::"
        "test_an_unsuitable_disk_is_refused_before_training",
    ),
    Mutation(
        "a lower attempt does not replace a model", "training/artifacts/publish.py",
        "if attempt_of(aside) > attempt:", "if False:",  # the look before the rename only saves the rename
        f"{ARTIFACT}::test_without_a_common_lock_the_later_model_comes_back",
    ),
    Mutation(
        "a damaged data set is refused", "training/data/builtin/idx_file.py",
        "if found != expected:", "if False:",
        "tests/unit/training/data/test_datasets.py::test_a_file_of_another_checksum_is_refused",
    ),
    Mutation(
        "a plan that was not proven faster is not taken", "calibration/acceptance/confirmation.py",
        "return confirmation, best if confirmation.proven else reference", "return confirmation, best",
        f"{SEARCH}::test_a_gain_within_the_noise_is_not_proven",
    ),
    Mutation(
        "a precision whose gradients differ is not taken", "calibration/races/evaluation.py",
        "if not cosine > COSINE:", "if False:",
        f"{SEARCH}::test_a_precision_whose_gradients_differ_is_rejected",
    ),
    Mutation(
        "what calibration runs is predicted to fit", "calibration/memory/prober.py",
        "if (self.model.predict(size) or self.model.at_least(size)) > safe_bytes:", "if False:",
        "tests/unit/calibration/memory/test_prober.py::test_doubling_ends_where_the_line_refuses",
    ),
    Mutation(
        "a plan of another container is not reused", "calibration/cache/signature.py",
        '"quota": resources.quota,', "",
        "tests/unit/calibration/cache/test_signature.py::test_other_inputs_have_another_key",
    ),
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Try the mutations; return the exit code."""
    chosen = [each for each in MUTATIONS if not words or any(word in each.promise for word in words)]
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        tree = Path(scratch)
        copy_tree(tree)
        whole = run_tests(tree, sorted({each.test for each in chosen}))
        if whole:
            print(f"the tests fail without a mutation: pytest ended with {whole}")
            return 1
        survivors = [each for each in chosen if not is_caught(tree, each)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations are caught")
    return 1 if survivors else 0


def copy_tree(tree: Path) -> None:
    """Copy the tracked files, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    for name in filter(None, listed.stdout.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)


def is_caught(tree: Path, mutation: Mutation) -> bool:
    """Return whether the test of a mutation fails; its line is restored."""
    path = tree / mutation.path
    source = path.read_text()
    path.write_text(source.replace(mutation.line, mutation.broken))
    code = run_tests(tree, [mutation.test])
    path.write_text(source)
    verdict = {FAILED: "caught", 0: "SURVIVED"}.get(code, f"pytest ended with {code}")
    print(f"{verdict:<10}{mutation.promise} ({mutation.path}: {mutation.line})", flush=True)
    return code == FAILED


def run_tests(tree: Path, tests: Sequence[str]) -> int:
    """Run tests on a copy, whose packages come before those that are installed; return pytest's exit code."""
    folders = os.pathsep.join(map(str, (tree, tree / "client", tree / "tests")))
    environment = {**os.environ, "PYTHONPATH": folders, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    if done.returncode > FAILED:
        print(done.stdout[-2_000:], done.stderr[-2_000:], sep="\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
