"""Content of the file that `preflight run --json` writes."""

from collections.abc import Sequence
from dataclasses import asdict

from preflight.launch.block import Ended, block
from preflight.launch.findings import Findings, Process
from preflight.tuner.journal import Record


def summary(command: Sequence[str], findings: Findings, ended: Ended, said: Sequence[str] = ()) -> Record:
    """Return the end of a command, the findings of its processes, and the sentences of the block."""
    return {
        "type": "preflight.run.v1", "command": list(command), **asdict(ended),
        "processes": [_process(each) for each in findings.processes],
        "failures": list(findings.failures), "text": block(findings, ended, said),
    }  # fmt: skip


def _process(process: Process) -> Record:
    known = ("trial", "winner", "adapted", "prediction", "checked", "note", "advice", "advised")
    return {
        "pid": process.pid, "start": process.start, "summary": process.summary,
        "records": [record for record in process.records if record.get("what") in known],
    }  # fmt: skip
