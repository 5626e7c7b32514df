"""The client for other services: enqueue, status, events, cancel. Needs neither torch nor a worker's settings.

from worker.client import Client
from worker.wire import TrainJob

client = Client("redis://localhost:6379/0")
job_id = client.enqueue(TrainJob(type="preflight.train.v1", dataset="mnist", model="cnn")).job_id
for event in client.events(job_id):
    print(event)
"""

from worker.client.client import Client
from worker.client.results import EnqueueResult, Silence

__all__ = ("Client", "EnqueueResult", "Silence")
