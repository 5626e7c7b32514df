"""State of a worker on its disk and in its process: paths, spool, control files, its lock."""
