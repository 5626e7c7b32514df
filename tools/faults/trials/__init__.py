"""Faults that need a separate scene: hosts, memory, disks, clocks, messages, output."""
