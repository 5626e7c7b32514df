-- Enqueue or schedule the next run of a job that repeats, once.
-- KEYS: fence, RQ's hash of the next run, queue, scheduled registry
-- ARGV: owner or '' where no attempt had begun, attempt, id of the next run, seconds until it or '' for now, then the fields of its hash
-- Returns superseded, exists or ok.
local fence, job, queue, scheduled = unpack(KEYS)
local id, at = ARGV[3], ARGV[4]
if ARGV[1] ~= '' and superseded(fence, ARGV[1], tonumber(ARGV[2])) then
  return 'superseded'
end
if redis.call('EXISTS', job) == 1 then
  return 'exists'
end
redis.call('LLEN', queue) -- fails on a wrong type before anything has changed
redis.call('ZCARD', scheduled)
redis.call('HSET', job, unpack(ARGV, 5))
if at == '' then
  redis.call('RPUSH', queue, id)
else
  redis.call('ZADD', scheduled, math.floor(clock_seconds() + tonumber(at)), id)
end
return 'ok'
