"""Building: from decoded rows to a split, deduplicated store and the report about it."""
