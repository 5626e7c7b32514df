-- Put a job that has failed or was cancelled back into its queue, with a new payload.
-- KEYS: job hash, queue, failed registry, canceled registry, cancel by the job's id, cancel by RQ's id
-- ARGV: RQ's id, now as RQ writes it, payload, retries, ttl in s while it waits or ''
-- Returns retried, or RQ's status of a job that has not ended so; '' where there is none.
-- Deletes come first, so that a full Redis accepts the rest.
local job, queue, failed, canceled = unpack(KEYS)
local id, date, data, retries, ttl = unpack(ARGV)
local status = redis.call('TYPE', job).ok == 'hash' and bounded_field(job, 'status', 32) or ''
if status ~= 'failed' and status ~= 'stopped' and status ~= 'canceled' then
  return status
end
redis.call('LLEN', queue) -- fails on a wrong type before anything has changed
redis.call('DEL', KEYS[5], KEYS[6]) -- else a late request to cancel the last run would stop this one
redis.call('ZREM', failed, id)
redis.call('ZREM', canceled, id)
redis.call('HDEL', job, 'started_at', 'ended_at', 'last_heartbeat', 'worker_name')
redis.call('HSET', job, 'status', 'queued', 'enqueued_at', date, 'data', data, 'retries_left', retries)
if ttl == '' then
  redis.call('PERSIST', job)
else
  redis.call('EXPIRE', job, ttl)
end
if not redis.call('LPOS', queue, id) then
  redis.call('RPUSH', queue, id)
end
return 'retried'
