-- Times that one script may look for an id in a queue, which costs as much as the queue is long.
local lookups = 5
-- Enqueue a job whose time has come, or whose dependencies have ended; one with a rate limit waits for a slot of it. A job
-- that is queued already is looked for, a few times a script; twice in the queue it runs once, as its fence holds.
-- Returns the name of that limit, or false.
local function enqueue_waiting(queue, id, job, date)
  local front = bounded_field(job, 'enqueue_at_front', 1)
  local limit = bounded_field(job, 'rate_limit_key', 256)
  local waiting = limit and 'rq:rl:' .. limit .. ':rate_limited'
  if limit and is_a(waiting, 'zset') then
    redis.pcall('SADD', 'rq:rl-keys', limit)
    redis.pcall('HSET', 'rq:rl:' .. limit, 'concurrency', math.max(1, whole(bounded_field(job, 'rate_limit_concurrency', 9))))
    redis.call('HSET', job, 'status', 'rate_limited')
    redis.call('ZADD', waiting, clock_seconds(), id)
    return limit
  end
  if bounded_field(job, 'status', 32) == 'queued' and lookups > 0 then
    lookups = lookups - 1
    if redis.call('LPOS', queue, id) then
      return false
    end
  end
  redis.call('HSET', job, 'status', 'queued', 'enqueued_at', date)
  redis.call(front == '1' and 'LPUSH' or 'RPUSH', queue, id)
  return false
end
