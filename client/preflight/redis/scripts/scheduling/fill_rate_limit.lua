-- Free the slots of a rate limit whose jobs have ended and give them to waiting jobs, oldest first, as RQ 3 does.
-- KEYS: jobs with a slot, waiting jobs, settings, all limits   ARGV: name, now as RQ writes it, most jobs
-- Returns the number of jobs enqueued.
local holders, waiting, config, limits = unpack(KEYS)
local now, most, enqueued = clock_seconds(), tonumber(ARGV[3]), 0
if not (is_a(holders, 'zset') and is_a(waiting, 'zset') and is_a(config, 'hash')) then
  return 0
end
for _, id in ipairs(redis.call('ZRANGE', holders, 0, most - 1)) do
  local job, executions = 'rq:job:' .. id, 'rq:executions:' .. id
  local status = redis.call('TYPE', job).ok == 'hash' and bounded_field(job, 'status', 32)
  local runs = redis.call('TYPE', executions).ok == 'zset' and redis.call('ZCOUNT', executions, '(' .. now, '+inf') > 0
  if status ~= 'queued' and status ~= 'started' and not runs then
    redis.call('ZREM', holders, id)
  end
end
local free = whole(bounded_field(config, 'concurrency', 9)) - redis.call('ZCARD', holders)
for _, id in ipairs(free > 0 and redis.call('ZRANGE', waiting, 0, most - 1) or {}) do
  local job = 'rq:job:' .. id
  local there = #id <= 256 and redis.call('TYPE', job).ok == 'hash'
  local origin = there and bounded_field(job, 'status', 32) == 'rate_limited' and bounded_field(job, 'origin', 256)
  if not origin then
    redis.call('ZREM', waiting, id)
  elseif free > 0 and is_a('rq:queue:' .. origin, 'list') then
    redis.call('ZREM', waiting, id)
    redis.call('ZADD', holders, now, id)
    redis.call(bounded_field(job, 'enqueue_at_front', 1) == '1' and 'LPUSH' or 'RPUSH', 'rq:queue:' .. origin, id)
    redis.call('HSET', job, 'status', 'queued', 'enqueued_at', ARGV[2])
    free, enqueued = free - 1, enqueued + 1
  end
end
if redis.call('ZCARD', holders) == 0 and redis.call('ZCARD', waiting) == 0 then
  redis.call('SREM', limits, ARGV[1])
  redis.call('DEL', holders, waiting, config)
end
return enqueued
