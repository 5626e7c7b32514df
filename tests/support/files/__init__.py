"""Files, file systems and cgroups."""
