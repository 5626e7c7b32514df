"""Starts a command and waits for it, as if it had been started without us.

The command stays in our process group, so that the terminal's Ctrl-C and Ctrl-Z reach it directly; they are not sent
again. A signal from `kill` was sent to our process alone, and is forwarded. Where the command stops, we stop, so that
the shell gets its terminal back; `fg` continues both.
"""

import ctypes
import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
"""Exit codes of a shell."""
SIGNALED: Final = 128
"""Exit code of a shell for a command that signal n ended, less n."""
POLL_SECONDS: Final = 1.0
"""Seconds between two calls of `poll`."""
_PR_SET_PDEATHSIG: Final = 1
_JOB_CONTROL: Final = frozenset((signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
_RESET: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, and a program that is started inherits it."""
_WATCHED: Final = signal.valid_signals() - {
    *_RESET, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
}  # fmt: skip
"""All that a process may be sent, but for those that its own faults cause."""


def run_command(command: Sequence[str], variables: Mapping[str, str], poll: Callable[[], None] | None = None) -> int:
    """Run a command with these environment variables; return its exit code, 128 + n where signal n ended it.

    `poll` is called about once a second meanwhile.

    Raises:
        OSError: it cannot be started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        child = _start(command, variables, before)
        while True:
            info = signal.sigtimedwait(_WATCHED, POLL_SECONDS) if poll else signal.sigwaitinfo(_WATCHED)
            if info is None:
                if poll:
                    poll()
            elif info.si_signo == signal.SIGCHLD:
                status = _collect(child)
                if status is not None:
                    return status
            elif info.si_code <= 0:  # from a process; the kernel's own, of the terminal, went to the whole group
                with suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _collect(child: int) -> int | None:
    """Return the command's exit code; None: it has not ended. Orphans that PID 1 of a container inherits are reaped."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return None
        if process == 0:
            return None
        if process != child:
            continue
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in _JOB_CONTROL:
                os.kill(os.getpid(), signal.SIGSTOP)
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGCONT)
            continue
        return SIGNALED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _start(command: Sequence[str], variables: Mapping[str, str], mask: set[int] | set[signal.Signals]) -> int:
    """Fork and execute; return the process id. The child ends where we are killed, as nobody would wait for it."""
    prctl = _prctl()
    reader, writer = os.pipe()
    ours = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            for number in _RESET:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != ours:
                    os.kill(os.getpid(), signal.SIGKILL)
            _execute(list(command), variables)
        except (OSError, ValueError) as error:  # an empty name is a ValueError
            os.write(writer, str(getattr(error, "errno", None) or errno.ENOENT).encode())
        finally:
            os._exit(NOT_FOUND)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        failed = file.read()  # it ends when the command is executed, which closes the other end
    if failed:
        os.waitpid(child, 0)
        code = int(failed)
        raise OSError(code, os.strerror(code), command[0])
    return child


def _execute(command: list[str], variables: Mapping[str, str]) -> None:
    try:
        os.execvpe(command[0], command, variables)  # noqa: S606 - the user's own command
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve("/bin/sh", ["sh", *command], variables)  # noqa: S606 - as shells do with a script without a first line


def _prctl() -> Callable[[int, int], int] | None:
    try:
        found: Callable[[int, int], int] = ctypes.CDLL(None).prctl
    except (AttributeError, OSError):
        return None
    return found
