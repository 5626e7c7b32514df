-- Put a job that no longer runs back into its queue.
-- KEYS: fence, lease, RQ's queue, intermediate queue, started registry, job hash and scheduled registry
-- ARGV: job id, owner, token, end of the queue (front/back), retries left or '', execution or '', ttl in s, deaths short
-- of memory that do not count, seconds after which it is queued or '', then ids of jobs that were taken before this one:
-- at the front it comes after them where they are back already
-- The token of an owner is the attempt's number; a reaper has no owner (''), and its token is the lease that it saw.
-- Returns superseded, alive, gone (RQ's records have to be restored first), over, queued or scheduled.
-- Deletes come first, so that a full Redis accepts the rest.
local fence, lease, queue, intermediate, started, job, scheduled = unpack(KEYS)
local FIRST_OLDER = 10
local id, owner, token, side, retries, execution, ttl, spared, at = unpack(ARGV)
redis.call('LLEN', queue) -- fails on a wrong type before anything has changed
redis.call('ZCARD', scheduled)
if owner ~= '' then
  if superseded(fence, owner, tonumber(token)) then
    return 'superseded'
  end
  if redis.call('TYPE', job).ok ~= 'hash' and redis.call('HEXISTS', fence, 'lost') == 1 then
    redis.call('EXPIRE', fence, ttl)
    return 'gone'
  end
  redis.call('DEL', lease)
  redis.call('HSET', fence, 'deaths', 0)
  redis.call('HDEL', fence, 'lost', 'low_memory')
  if retries ~= '' then
    redis.call('HDEL', fence, 'failure') -- a retry follows
  end
  redis.call('EXPIRE', fence, ttl)
elseif (redis.call('GET', lease) or '') ~= token then -- which was read within its bound
  return 'alive'
end
redis.call('DEL', lease)
if owner == '' and redis.call('HGET', fence, 'low_memory') == '1' then
  local before = whole(redis.call('HGET', fence, 'spared'))
  if before < tonumber(spared) then
    local deaths = whole(redis.call('HGET', fence, 'deaths'))
    redis.call('HSET', fence, 'deaths', math.max(0, deaths - 1), 'spared', before + 1)
  end
  redis.call('HDEL', fence, 'low_memory')
end
redis.call('LREM', intermediate, 0, id)
remove_execution(started, id, execution)
of_type(job, 'hash')
local status, running = bounded_field(job, 'status', 32), is_running(fence)
redis.call('HDEL', fence, 'running')
local ended = status == 'finished' or status == 'failed' or status == 'stopped'
if redis.call('HEXISTS', job, 'status') == 0 or status == 'canceled' or (ended and not running) then
  return 'over'
end
if retries ~= '' then
  redis.call('HSET', job, 'retries_left', retries)
end
if at ~= '' then
  redis.call('ZADD', scheduled, math.floor(clock_seconds() + tonumber(at)), id)
  redis.call('HSET', job, 'status', 'scheduled')
  return 'scheduled'
end
redis.call('HSET', job, 'status', 'queued')
if redis.call('LPOS', queue, id) then
  return 'queued'
end
if side == 'front' then
  for index = #ARGV, FIRST_OLDER, -1 do
    if redis.call('LPOS', queue, ARGV[index], 'MAXLEN', #ARGV - FIRST_OLDER + 1) then
      redis.call('LINSERT', queue, 'AFTER', ARGV[index], id)
      return 'queued'
    end
  end
end
redis.call(side == 'front' and 'LPUSH' or 'RPUSH', queue, id)
return 'queued'
