-- Delete the records of a job that has ended, and keep its id from being trained again. A process of it that still lives
-- is superseded.
-- KEYS: requests, tombstones, fence, lease, RQ's job hash, RQ's three registries of ended jobs, then what goes
-- ARGV: job id, RQ's id, tombstones kept, for how long in s
-- Returns deleted, or RQ's status of a job that has not ended; running where its lease is held.
local requests, tombstones, fence, lease, job = unpack(KEYS)
local id, rq_id, most, seconds = unpack(ARGV)
local over = {finished = true, failed = true, canceled = true, stopped = true}
local status = redis.call('TYPE', job).ok == 'hash' and bounded_field(job, 'status', 32)
if redis.call('EXISTS', lease) == 1 then
  return 'running'
end
if status and not over[status] then
  return status
end
local now = clock_seconds()
redis.call('ZADD', tombstones, now, id)
redis.call('ZREMRANGEBYSCORE', tombstones, '-inf', now - seconds)
redis.call('ZREMRANGEBYRANK', tombstones, 0, -most - 1)
if redis.call('TYPE', fence).ok == 'hash' then
  redis.call('HSET', fence, 'attempt', math.min(whole(bounded_field(fence, 'attempt', 9)) + 1, 99999999), 'owner', 'deleted')
  redis.call('HDEL', fence, 'running', 'request', 'failure')
end
for number = 6, 8 do
  if redis.call('TYPE', KEYS[number]).ok == 'zset' then
    redis.call('ZREM', KEYS[number], rq_id)
  end
end
redis.call('UNLINK', unpack(KEYS, 9))
redis.call('HDEL', requests, id)
return 'deleted'
