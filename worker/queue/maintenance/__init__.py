"""Maintenance of a queue by its workers while they wait."""
