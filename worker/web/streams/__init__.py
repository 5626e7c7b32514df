"""Event streams for many viewers: one connection to Redis reads every watched stream."""
