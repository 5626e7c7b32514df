"""Faults that need a scene apart: hosts, memory, disks, clocks, messages, output."""
