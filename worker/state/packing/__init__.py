"""Packing: jobs of one host that run at the same time, and the share of each in processors and memory."""
