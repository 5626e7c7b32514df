"""Client of preflight: enqueue trainings and follow them from any program, without torch and a worker's packages.

from preflight import Client, TrainJob

client = Client("redis://localhost:6379/0")
job_id = client.enqueue(TrainJob(type="preflight.train.v1", dataset="mnist", model="cnn")).job_id
for event in client.events(job_id):
    print(event)

Nothing is imported before it is asked for: other packages of this project import their parts of `preflight` alone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.client.client import Client
    from preflight.client.results import EnqueueResult, Silence
    from preflight.launch.library import Tuner
    from preflight.recognizer.recognizer import Recognition, Recognizer
    from preflight.wire import GroupSize, OwnPlan, TrainJob

__all__ = (
    "Client",
    "EnqueueResult",
    "GroupSize",
    "OwnPlan",
    "Recognition",
    "Recognizer",
    "Silence",
    "TrainJob",
    "Tuner",
)

_HOMES = {
    "Client": "preflight.client.client", "EnqueueResult": "preflight.client.results",
    "Silence": "preflight.client.results", "GroupSize": "preflight.wire", "OwnPlan": "preflight.wire",
    "TrainJob": "preflight.wire", "Tuner": "preflight.launch.library",
    "Recognition": "preflight.recognizer.recognizer", "Recognizer": "preflight.recognizer.recognizer",
}  # fmt: skip
"""Public name -> module that defines it."""


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'preflight' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the public names, also those that were not used yet."""
    return sorted({*globals(), *__all__})
