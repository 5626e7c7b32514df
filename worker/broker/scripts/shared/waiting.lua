-- Enqueue a job whose time has come, or whose dependencies have ended; one with a rate limit waits for a slot of it.
-- Returns the name of that limit, or false.
local function enqueue_waiting(queue, id, job, now, date)
  local front = redis.call('HGET', job, 'enqueue_at_front')
  local limit = redis.call('HSTRLEN', job, 'rate_limit_key') <= 256 and redis.call('HGET', job, 'rate_limit_key')
  local waiting = limit and 'rq:rl:' .. limit .. ':rate_limited'
  local kind = limit and redis.call('TYPE', waiting).ok
  if kind == 'zset' or kind == 'none' then
    redis.pcall('SADD', 'rq:rl-keys', limit)
    redis.pcall('HSET', 'rq:rl:' .. limit, 'concurrency', math.max(1, whole(redis.call('HGET', job, 'rate_limit_concurrency'))))
    redis.call('HSET', job, 'status', 'rate_limited')
    redis.call('ZADD', waiting, now, id)
    return limit
  end
  redis.call('HSET', job, 'status', 'queued', 'enqueued_at', date)
  if not redis.call('LPOS', queue, id) then
    redis.call(front == '1' and 'LPUSH' or 'RPUSH', queue, id)
  end
  return false
end
