"""The Redis server itself: its program, one that is started here, its faults."""
