"""What stops a job, or a worker that waits."""

import signal

from worker.state.control import StopSignal


def test_a_signal_ends_a_sleep() -> None:
    """Python's own sleep goes on after a handler."""
    stop = StopSignal()
    former = signal.signal(signal.SIGALRM, lambda *_: setattr(stop, "times", 1))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        stop.sleep(3600)  # pytest's own time limit is shorter
    finally:
        signal.signal(signal.SIGALRM, former)
    assert stop()
    stop.sleep(3600)
