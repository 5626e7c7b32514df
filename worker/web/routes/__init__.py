"""HTTP routes by topic."""
