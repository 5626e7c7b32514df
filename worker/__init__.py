"""Talks to the outside (Redis, RQ, environment, terminal) and supervises the child processes.

Never imports torch: an idle worker stays small, and no fork ever follows OpenMP work.
"""
