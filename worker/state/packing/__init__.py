"""Packing: jobs of one host that run at the same time, and what each has of processors and memory."""
