"""Admission: which jobs from the queue may run, and what becomes of the others."""
