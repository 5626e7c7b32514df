"""Imported data sets over HTTP: uploads, imported data, and its pictures."""
