"""The client: enqueue, status, events, cancel, list; `from preflight import Client`."""
