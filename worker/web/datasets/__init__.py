"""Imported data sets over HTTP: what is uploaded, what is imported, and pictures of it."""
