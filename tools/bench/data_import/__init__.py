"""Imported data compared with other readers of the same files, and with built-in data."""
