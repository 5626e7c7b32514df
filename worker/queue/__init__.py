"""The RQ worker: admission, quarantine, work-horses, and the jobs of workers that died."""
