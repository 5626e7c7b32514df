"""Every Redis key of the service, beside those of RQ itself. The braces keep a job's keys in one cluster slot."""


def events(job_id: str) -> str:
    """Stream of everything that happens to a job; capped."""
    return f"preflight:{{{job_id}}}:events"


def lifecycle(job_id: str) -> str:
    """Stream of a job's turning points; never trimmed."""
    return f"preflight:{{{job_id}}}:lifecycle"


def state(job_id: str) -> str:
    """Hash of the latest value of everything about a job."""
    return f"preflight:{{{job_id}}}:state"


def attempt(job_id: str) -> str:
    """Counter of a job's executions."""
    return f"preflight:{{{job_id}}}:attempt"


def cancel(job_id: str) -> str:
    """Present when somebody asked for the job to stop."""
    return f"preflight:{{{job_id}}}:cancel"


def result(job_id: str) -> str:
    """JSON of a finished job's result: the mark that it need not run again."""
    return f"preflight:{{{job_id}}}:result"


def plan(job_id: str) -> str:
    """Plan that a deterministic job keeps through every attempt, as JSON."""
    return f"preflight:{{{job_id}}}:plan"
