"""A worker holds as much after many jobs as after one."""

import pytest
from support.worker.process_tree import Held, settled_tree, tree
from support.worker.services import StartProgram, StartWorker, digits_job, wait_for

from preflight import Client

JOBS = 20
HOLDER = """
import subprocess, sys
kept = [open("/dev/null") for _ in range(int(sys.argv[1]))]
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print("ready", flush=True)
child.wait()
"""


def test_what_a_tree_holds_is_counted(start_program: StartProgram) -> None:
    """Descriptors of a process, its children, and the memory of both."""
    few, many = (start_program(HOLDER, count).pid for count in (0, 5))
    assert len(tree(few)) == 2
    held = {pid: Held.by(settled_tree(pid)) for pid in (few, many)}
    assert held[many].descriptors == held[few].descriptors + 5
    assert held[many].processes == held[few].processes == 2
    assert held[few].pss > Held.by([few]).pss > 0


@pytest.mark.slow  # twenty trainings
def test_a_worker_holds_no_more_after_many_jobs(client: Client, start_worker: StartWorker) -> None:
    """Processes and file descriptors, its own and its children's."""
    worker, held = start_worker(), list[Held]()
    for number in range(JOBS):
        client.enqueue(digits_job(job_id=f"job-{number}"))
        assert wait_for(client, f"job-{number}").status == "finished"
        if number in (0, JOBS - 1):
            held.append(Held.by(settled_tree(worker.process.pid)))
    first, last = held
    assert (last.processes, last.descriptors) == (first.processes, first.descriptors)
