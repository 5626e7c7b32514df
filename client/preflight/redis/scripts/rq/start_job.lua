-- Mark a job as started for RQ, or as still running where Redis lost its data.
-- KEYS: fence, started registry, intermediate queue, job hash
-- ARGV: owner, attempt, RQ's id, execution, worker, ttl in s, now as RQ writes it, then the job's fields
-- Returns superseded, gone (the hash is lost, and no fields were given) or ok.
local fence, started, intermediate, job = unpack(KEYS)
local owner, attempt, id, execution, worker, ttl, date = unpack(ARGV)
if superseded(fence, owner, tonumber(attempt)) then
  return 'superseded'
end
if redis.call('TYPE', job).ok ~= 'hash' then
  if redis.call('HEXISTS', fence, 'lost') == 0 then
    return 'ok' -- the job was deleted while it runs
  end
  if #ARGV == 7 then
    return 'gone'
  end
  of_type(job, 'hash')
  redis.call('HSET', job, unpack(ARGV, 8))
end
if bounded_field(job, 'status', 32) ~= 'started' or not redis.call('ZSCORE', started, id .. ':' .. execution) then
  add_execution(started, id, execution, worker, tonumber(ttl))
  redis.call('HSET', job, 'status', 'started', 'started_at', date, 'last_heartbeat', date, 'worker_name', worker)
end
redis.call('PERSIST', job)
redis.call('HDEL', fence, 'lost')
redis.call('HSET', fence, 'running', 1)
redis.call('LREM', intermediate, 0, id)
return 'ok'
