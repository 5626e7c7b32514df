"""Files over HTTP: those of the page, and those of finished models."""
