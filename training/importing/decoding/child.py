"""The decoding child: reads tasks from standard input, one JSON a line, and answers each with a line when it is done.

It decodes untrusted files, so the kernel bounds its memory, and its parent its time: the number of the sample that it
is at stands in a shared page. Samples that ended an earlier child come as `skip`.
"""

import ctypes
import errno
import gc
import json
import mmap
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Final

from preflight.pictures.decoding import Unusable
from training.importing.decoding.progress import Progress
from training.importing.decoding.readers import READERS, probe_shard, read_files
from training.importing.decoding.task import Task
from training.importing.rows import Batch, describe, save_array

MEMORY: Final = 2 << 30
"""Bytes of address space beyond that of the interpreter, in which 50 million pixels in colour fit."""
PAGE: Final = struct.Struct("<q")


def main() -> None:
    """Serve the parent that the arguments name: its process id, the working directory, and the progress file."""
    parent, work, progress = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    with progress.open("r+b") as file:
        page = mmap.mmap(file.fileno(), PAGE.size)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
    gc.freeze()
    gc.disable()  # pictures are many small objects; collected after each task
    for line in sys.stdin.buffer:
        task = Task.parse(line)
        # A mapped array counts, too, and may be larger than memory.
        _limit_memory(limit if task.shard.kind == "files" else resource.RLIM_INFINITY)
        PAGE.pack_into(page, 0, 0)
        answer = _serve(task, Progress(lambda at: PAGE.pack_into(page, 0, at), task.skip), work)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        gc.collect()


def _serve(task: Task, progress: Progress, work: Path) -> dict[str, object]:
    name, shard = task.name, task.shard
    try:
        if task.form is None:
            probes = [(one.height, one.width, one.colour, one.paper) for one in probe_shard(shard, progress)]
            return {"name": name, "probes": probes, "refused": progress.refused}
        state = shard.state()
        if shard.kind == "files" and task.earlier is not None:
            from training.importing.decoding.earlier import open_earlier  # imports twice as much as all else here

            result = read_files(shard, task.form, progress, open_earlier(*task.earlier))
        else:
            result = READERS[shard.kind](shard, task.form, progress)
        described = describe(result.batch.images, result.batch.rows) if len(result.batch.rows) else result.batch
        return {"name": name, **_write(work, name, described, result.names, progress, state)}
    except Unusable as error:  # of the whole task
        return {"name": name, "failed": str(error)}
    except MemoryError:
        return {"name": name, "failed": f"needs more than {MEMORY >> 20:,} MiB of memory to decode"}
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return {"name": name, "failed": f"{where}{error.strerror or error}", "errno": error.errno or errno.EIO}


def _write(
    work: Path, name: str, batch: Batch, names: tuple[str, ...], progress: Progress, state: str
) -> dict[str, object]:
    """Write the files of a task, the one that vouches for the others last; return its content."""
    for kind, array in (("images", batch.images), ("rows", batch.rows)):
        staged = work / f".{name}.{kind}"
        save_array(staged, array)
        staged.rename(work / f"{name}.{kind}.npy")
    said = {"rows": len(batch.rows), "names": names, "refused": progress.refused, "items": progress.at, "state": state}
    staged = work / f".{name}.json"
    staged.write_text(json.dumps(said))
    staged.rename(work / f"{name}.json")
    return said


def _limit_memory(limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = min((each for each in (limit, hard) if each != resource.RLIM_INFINITY), default=resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    main()
