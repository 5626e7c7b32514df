"""Events in Redis: the record of one, and the job's state that it updates."""
