"""`preflight run` on unmodified scripts, against fixed settings and the plain command, in real cgroups."""
