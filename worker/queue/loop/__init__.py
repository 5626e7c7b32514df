"""Parts of a worker's loop: its presence in Redis, commands, chores between jobs, the run of a job."""
