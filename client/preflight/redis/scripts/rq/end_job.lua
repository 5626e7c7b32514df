-- Record the end of a job with RQ, in one step and once.
-- KEYS: fence, started registry, intermediate queue, job hash, registry of the outcome, results, worker hash,
-- acceptance record of the job's signed message, jobs whose dependents are to be released
-- ARGV: owner or '', attempt, RQ's id, execution or '', status, now in s, now as RQ writes it, ttl in s (-1: for ever),
-- counter of the worker, seconds worked, ttl of the acceptance record in s, then the fields of the result
-- Returns superseded, gone (RQ's records have to be restored first), over (it was recorded before) or ok.
local fence, started, intermediate, job, registry, results, worker, accepted, released = unpack(KEYS)
local owner, attempt, id, execution, status, now, date, ttl, counter, seconds, accepted_ttl = unpack(ARGV)
if owner ~= '' and superseded(fence, owner, tonumber(attempt)) then
  return 'superseded'
end
redis.call('ZCARD', registry) -- fails on a wrong type before anything has changed
redis.call('LREM', intermediate, 0, id)
remove_execution(started, id, execution)
of_type(job, 'hash')
local before, there = bounded_field(job, 'status', 32), redis.call('EXISTS', job) == 1
local running = owner ~= '' and is_running(fence)
if not there and owner ~= '' and redis.call('HEXISTS', fence, 'lost') == 1 then
  return 'gone'
end
if before == status and not running then
  return 'over'
end
if running then
  redis.call('HDEL', fence, 'running')
end
end_accepted(accepted, id, accepted_ttl)
local dependents = job .. ':dependents'
if status ~= 'stopped' and redis.call('TYPE', dependents).ok == 'set' then
  redis.call('HSET', released, id, status)
  redis.call('EXPIRE', dependents, 86400) -- a worker releases them within seconds
end
ttl = tonumber(ttl)
if ttl == 0 then
  redis.call('DEL', job, results, 'rq:job::' .. id .. ':dependencies', 'rq:executions:' .. id)
elseif there then
  redis.call('HSET', job, 'status', status, 'ended_at', date)
  redis.call('XADD', of_type(results, 'stream'), 'MAXLEN', 10, '*', unpack(ARGV, 12))
  redis.call('ZADD', registry, ttl < 0 and '+inf' or math.floor(clock_seconds()) + ttl, id)
  for _, key in ipairs({job, results, 'rq:job::' .. id .. ':dependencies'}) do
    if ttl < 0 then
      redis.call('PERSIST', key)
    else
      redis.call('EXPIRE', key, ttl)
    end
  end
end
if redis.call('TYPE', worker).ok == 'hash' then
  redis.pcall('HINCRBY', worker, counter, 1) -- failing statistics must not fail the job
  redis.pcall('HINCRBYFLOAT', worker, 'total_working_time', seconds)
end
return 'ok'
