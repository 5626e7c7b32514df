"""Catalog: the imported data sets by name and version, their manifests and their stores."""
