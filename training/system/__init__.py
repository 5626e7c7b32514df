"""The machine: cgroups, resources, interference and files."""
