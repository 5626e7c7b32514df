"""Commands that look at an installation: doctor, health."""
