-- Release the lock of a scheduler, or the place of a maintainer, if its owner holds it.
-- KEYS: lock   ARGV: owner
-- Returns 1 or 0 in a list.
return {bounded_value(KEYS[1], 512) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0}
