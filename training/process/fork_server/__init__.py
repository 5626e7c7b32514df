"""Fork server: a process with torch imported that forks the children of jobs, so that they start at once."""
