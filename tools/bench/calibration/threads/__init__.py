"""Threads that wait for each other: how long they spin, and what a busy neighbour makes of them."""
