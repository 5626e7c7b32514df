"""The commands of `preflight`, by what they work on."""
