-- Note that a worker is idle and may sit down, and return some of the offers of its queue.
-- KEYS: offers of the queue, idle workers of the queue   ARGV: worker, most offers
-- Returns job id, offer, job id, offer ...
redis.call('ZADD', KEYS[2], string.format('%.0f', milliseconds()), ARGV[1])
redis.call('EXPIRE', KEYS[2], 60)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
return redis.call('HRANDFIELD', KEYS[1], ARGV[2], 'WITHVALUES')
