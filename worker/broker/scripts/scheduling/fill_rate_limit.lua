-- Free the slots of a rate limit whose jobs have ended and give them to waiting jobs, oldest first, as RQ 3 does.
-- KEYS: jobs with a slot, waiting jobs, settings, all limits   ARGV: name, now in s, now as RQ writes it, most jobs
-- Returns the number of jobs enqueued.
local holders, waiting, config, limits = unpack(KEYS)
local now, most, enqueued = ARGV[2], tonumber(ARGV[4]), 0
local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if not (is(holders, 'zset') and is(waiting, 'zset') and is(config, 'hash')) then
  return 0
end
for _, id in ipairs(redis.call('ZRANGE', holders, 0, most - 1)) do
  local job, executions = 'rq:job:' .. id, 'rq:executions:' .. id
  local status = redis.call('TYPE', job).ok == 'hash' and redis.call('HGET', job, 'status')
  local runs = redis.call('TYPE', executions).ok == 'zset' and redis.call('ZCOUNT', executions, '(' .. now, '+inf') > 0
  if status ~= 'queued' and status ~= 'started' and not runs then
    redis.call('ZREM', holders, id)
  end
end
local free = whole(redis.call('HGET', config, 'concurrency')) - redis.call('ZCARD', holders)
for _, id in ipairs(free > 0 and redis.call('ZRANGE', waiting, 0, most - 1) or {}) do
  local job = 'rq:job:' .. id
  local found = redis.call('TYPE', job).ok == 'hash' and redis.call('HMGET', job, 'origin', 'status', 'enqueue_at_front')
  if not (found and found[1] and found[2] == 'rate_limited') then
    redis.call('ZREM', waiting, id)
  elseif free > 0 and is('rq:queue:' .. found[1], 'list') then
    redis.call('ZREM', waiting, id)
    redis.call('ZADD', holders, now, id)
    redis.call(found[3] == '1' and 'LPUSH' or 'RPUSH', 'rq:queue:' .. found[1], id)
    redis.call('HSET', job, 'status', 'queued', 'enqueued_at', ARGV[3])
    free, enqueued = free - 1, enqueued + 1
  end
end
if redis.call('ZCARD', holders) == 0 and redis.call('ZCARD', waiting) == 0 then
  redis.call('SREM', limits, ARGV[1])
  redis.call('DEL', holders, waiting, config)
end
return enqueued
