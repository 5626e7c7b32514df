"""The client for other services: enqueue, status, events, cancel. Needs neither torch nor a worker's settings."""

from worker.client.client import Client, Silence

__all__ = ("Client", "Silence")
