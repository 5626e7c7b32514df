"""`preflight run` leaves a command as it is: exit status, signals, terminal, standard input, environment."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.launching import PREFLIGHT, run
from support.worker.terminals import Terminal

import preflight

COUNTS_INTERRUPTS = """
import signal, sys, time
found = []
signal.signal(signal.SIGINT, lambda number, frame: found.append(number))
print("ready", flush=True)
deadline = time.monotonic() + 20
while not found and time.monotonic() < deadline: time.sleep(0.02)
time.sleep(0.5)
print("interrupts:", len(found), flush=True)
"""
WAITS = """
import pathlib, sys, time
print("ready", flush=True)
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)
print("done")
"""
ALL_CODES = """
from preflight.launch.command import run_command
import os, signal
for number in (signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_DFL)  # ignored in the background
print([code for code in range(256) if run_command(["sh", "-c", f"exit {code}"], os.environ) != code])
status = {number: run_command(["sh", "-c", f"kill -{number} $$"], os.environ) for number in (1, 2, 6, 9, 11, 15)}
print([number for number in status if status[number] != 128 + number])
"""


def test_each_exit_code_and_signal_is_passed_on() -> None:
    done = subprocess.run([sys.executable, "-c", ALL_CODES], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_output_input_and_exit_code_are_those_of_the_command() -> None:
    done = run(["sh", "-c", "cat; echo wrong >&2; exit 7"], stdin="through a pipe\n")
    assert (done.returncode, done.stdout) == (7, "through a pipe\n")
    assert done.stderr.startswith("wrong\npreflight: the command ran untouched: no Python process loaded the tuner")
    assert run(["sh", "-c", "echo wrong >&2"], "--quiet").stderr == "wrong\n"


def test_a_report_that_cannot_be_written_leaves_exit_code_and_block(tmp_path: Path) -> None:
    done = run(["sh", "-c", "exit 7"], "--json", str(tmp_path / "none" / "report.json"))
    assert done.returncode == 7
    assert "report.json cannot be written (No such file or directory); name another --json file" in done.stderr
    assert "preflight: the command ran untouched" in done.stderr


def test_a_package_that_changes_meanwhile_leaves_the_exit_code(tmp_path: Path) -> None:
    own = tmp_path / "preflight"
    shutil.copytree(Path(preflight.__file__).parent, own, ignore=shutil.ignore_patterns("__pycache__"))
    called = [sys.executable, "-c", "from preflight.cli.app import main; main()", "run", "--"]
    command = ["sh", "-c", 'rm "$0"; exit 7', str(own / "launch" / "block.py")]
    done = subprocess.run(
        [*called, *command],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7
    expected = (
        "preflight: what was found cannot be told (ModuleNotFoundError: No module named 'preflight.launch.block')"
    )
    assert done.stderr.strip() == expected


@pytest.mark.parametrize(("option", "why"), [("-S", "no Python process"), ("-I", "no Python process"), ("-B", "torch")])
def test_python_without_a_hook_runs_untouched_and_the_block_says_so(option: str, why: str) -> None:
    done = run([sys.executable, option, "-c", "print(1)"])
    assert done.stdout == "1\n"
    assert "ran untouched: no Python process" in done.stderr and why in done.stderr


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("exit 5\n")
    assert run(["nothing-of-that-name"]).returncode == 127
    assert "preflight:  cannot be started: No such file or directory" in run([""]).stderr
    assert run([str(script)]).returncode == 126
    script.chmod(0o755)
    assert run([str(script)]).returncode == 5  # without a first line it is a script of the shell


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-"])
def test_a_stderr_that_takes_nothing_leaves_command_and_exit_code(redirected: str) -> None:
    shell = f"exec {PREFLIGHT} run --log -- sh -c 'echo 5; exit 3' {redirected}"
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "5\n")


def test_a_disk_that_takes_no_file_leaves_the_command(tmp_path: Path) -> None:
    shell = f"ulimit -f 0; exec {PREFLIGHT} run -- sh -c 'echo 5; exit 3'"
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stdout) == (3, "5\n"), done.stderr
    assert "ran untouched: no folder for temporary files can be written" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["TERM", "ABRT", "XCPU"])
def test_a_signal_is_forwarded_and_its_handler_decides(name: str) -> None:
    program = f"trap 'echo stopping; exit 9' {name}; echo ready; while :; do sleep 0.02; done"
    with subprocess.Popen([PREFLIGHT, "run", "-q", "--", "sh", "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.stdout.read() == b"stopping\n"
    assert process.returncode == 9


def test_a_command_ends_with_us_where_we_are_killed() -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = [PREFLIGHT, "run", "--", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_reaches_the_command_once() -> None:
    terminal = Terminal(
        dict(os.environ), [PREFLIGHT, "run", "--", sys.executable, "-c", COUNTS_INTERRUPTS], columns=150, rows=20
    )
    terminal.until("ready")
    terminal.type("\x03")
    terminal.until("interrupts: 1")
    assert terminal.end() == 0


def test_ctrl_z_gives_the_shell_its_terminal_back_and_fg_continues(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = tmp_path / "wait.py"
    script.write_text(WAITS)
    terminal = Terminal(dict(os.environ), ["bash", "--norc", "-i"], columns=150, rows=40)
    terminal.type(f"{PREFLIGHT} run -q -- {sys.executable} {script} {go}\n")
    terminal.until("ready")
    terminal.type("\x1a")
    terminal.until("Stopped")
    terminal.type("fg\n")
    go.touch()
    terminal.until("done")
    terminal.type("exit 3\n")
    assert terminal.end() == 3


def test_a_process_in_the_background_goes_on(tmp_path: Path) -> None:
    done = run(["sh", "-c", f"(sleep 1; touch {tmp_path / 'late'}) >/dev/null 2>&1 & exit 4"])
    assert done.returncode == 4
    deadline = time.monotonic() + 20
    while not (tmp_path / "late").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_signals_that_were_ignored_stay_ignored() -> None:
    """As under nohup."""
    program = "import signal; print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGPIPE))"
    ignore = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", ignore, PREFLIGHT, "run", "-q", "--", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]  # Python itself ignores SIGPIPE


def test_the_users_own_sitecustomize_and_packages_stay_theirs(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text("print('mine')\n")
    for name in ("worker", "training", "calibration", "tuner"):
        (tmp_path / "path" / f"{name}.py").write_text(f"print('own {name}')\n")
    for name in ("preflight", "container"):
        (tmp_path / f"{name}.py").write_text(f"print('own {name}')\n")
    script = tmp_path / "train.py"
    script.write_text("import preflight, container, worker, training, tuner, sys; print(sys.path[1] == sys.argv[1])")
    path = str(tmp_path / "path")
    done = run([sys.executable, str(script), path], "-q", variables={"PYTHONPATH": path})
    own = [f"own {name}" for name in ("preflight", "container", "worker", "training", "tuner")]
    assert done.stdout.split("\n") == ["mine", "mine", *own, "True", ""]  # our own Python runs it, too
    assert done.stderr == ""
