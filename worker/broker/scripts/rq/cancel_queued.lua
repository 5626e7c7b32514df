-- Remove a job from the queue and mark it canceled; keys of another type are left alone.
-- KEYS: queue, job hash, canceled registry   ARGV: job id, ttl in s, now in s
-- Returns whether it was in the queue (0/1).
local function is(key, kind)
  return redis.call('TYPE', key).ok == kind
end
if not is(KEYS[1], 'list') or redis.call('LREM', KEYS[1], 0, ARGV[1]) == 0 then
  return 0
end
if is(KEYS[2], 'hash') then
  redis.call('HSET', KEYS[2], 'status', 'canceled')
  redis.call('EXPIRE', KEYS[2], ARGV[2])
end
if is(KEYS[3], 'zset') or is(KEYS[3], 'none') then
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
end
return 1
