"""Folder that `preflight run` puts first on PYTHONPATH: it holds sitecustomize alone."""
