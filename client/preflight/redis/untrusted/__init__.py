"""Everything that comes from Redis, read as if an enemy had written it: bounded connections, values, keys."""
