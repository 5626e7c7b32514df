"""Child processes: launch, journal, limits and exit status."""
