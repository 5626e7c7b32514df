"""Groups: several workers that train one job. The leader has the job; members have seats, and write nothing of it."""
