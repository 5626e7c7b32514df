-- Remove a job that has not begun from the queue or registry in which it waits, and mark it canceled; keys of another
-- type are left alone. A job that runs loses only a second entry in the queue: its attempt reads the request and ends it.
-- KEYS: queue, job hash, canceled registry, lease, then registries of waiting jobs   ARGV: job id, ttl in s, now in s
-- Returns whether it waited (0/1).
local function is(key, kind)
  return redis.call('TYPE', key).ok == kind
end
local found = is(KEYS[1], 'list') and redis.call('LREM', KEYS[1], 0, ARGV[1]) or 0
for number = 5, #KEYS do
  found = found + (is(KEYS[number], 'zset') and redis.call('ZREM', KEYS[number], ARGV[1]) or 0)
end
local status = is(KEYS[2], 'hash') and bounded_field(KEYS[2], 'status', 32)
if (found == 0 and status ~= 'rate_limited') or redis.call('EXISTS', KEYS[4]) == 1 then
  return 0
end
if status then
  redis.call('HSET', KEYS[2], 'status', 'canceled')
  redis.call('EXPIRE', KEYS[2], ARGV[2])
end
expire_dependencies(ARGV[1], ARGV[2])
if is(KEYS[3], 'zset') or is(KEYS[3], 'none') then
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
end
return 1
