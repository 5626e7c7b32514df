"""Listing: queue and workers at a glance, and an index of the jobs, which are searched and sorted."""
