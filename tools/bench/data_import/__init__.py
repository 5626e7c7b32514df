"""Imported data beside what people read the same files with, and beside built-in data."""
