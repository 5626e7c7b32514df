"""Figures of uploads and of the page "Data"."""
