"""What the container grants and what others use of it: cgroups, quotas, counters, clocks."""
