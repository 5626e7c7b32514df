-- Begin an attempt of a job, unless it is done, running, poisoned by deaths, or belongs to another request.
-- KEYS: fence, lease, result, RQ's job hash, then what has the job's id as RQ's id: alias, RQ's job hash
-- ARGV: owner, lease in ms, deaths allowed, ttl in s, least attempt, digest of the request, rounds allowed
-- Returns {status, number}: claimed/attempt, done/0, busy/0, poisoned/deaths, looping/rounds, mismatch/0, over/0.
local fence, lease, result, job, alias, namesake = unpack(KEYS)
local function over(status)
  return status == 'finished' or status == 'failed' or status == 'canceled' or status == 'stopped'
end
local function status_of(hash)
  return redis.call('TYPE', hash).ok == 'hash' and bounded_field(hash, 'status', 32)
end
local owner, request = ARGV[1], ARGV[6]
local bound = redis.call('HEXISTS', fence, 'request') == 1 and (bounded_field(fence, 'request', 128) or 'garbage')
if bound and bound ~= request then
  return {'mismatch', 0}
end
if not bound and namesake ~= job then -- another job may be known by this id, or waits under it
  local theirs = status_of(namesake)
  if redis.call('EXISTS', alias) == 1 or (theirs and not over(theirs)) then
    return {'mismatch', 0}
  end
end
if redis.call('EXISTS', result) == 1 then
  local rounds = whole(redis.call('HGET', fence, 'rounds')) + 1
  redis.call('HSET', fence, 'rounds', rounds)
  redis.call('EXPIRE', fence, ARGV[4])
  if rounds > tonumber(ARGV[7]) then
    return {'looping', rounds}
  end
  return {'done', 0}
end
local holder = redis.call('STRLEN', lease) <= 512 and redis.call('GET', lease)
local left = redis.call('PTTL', lease)
if left < 0 or left > tonumber(ARGV[2]) then
  holder = nil -- attempts write leases that expire; any other would hold the job for ever
end
if holder and string.sub(holder, 1, #owner + 1) == owner .. ' ' then
  return {'claimed', whole(redis.call('HGET', fence, 'attempt'))} -- the answer to the first call was lost
end
if holder then
  return {'busy', 0}
end
if over(status_of(job)) then
  return {'over', 0} -- it ended between take and claim
end
local deaths = whole(redis.call('HGET', fence, 'deaths'))
if deaths >= tonumber(ARGV[3]) then
  return {'poisoned', deaths}
end
local attempt = math.max(whole(redis.call('HGET', fence, 'attempt')) + 1, tonumber(ARGV[5]))
if attempt > 99999999 then
  attempt = tonumber(ARGV[5]) -- nobody ever tried as often: somebody else wrote the number
end
redis.call('HSET', fence, 'attempt', attempt, 'owner', owner, 'deaths', deaths + 1, 'request', request, 'running', 1)
redis.call('HDEL', fence, 'lost', 'low_memory')
redis.call('EXPIRE', fence, ARGV[4])
redis.call('SET', lease, owner .. ' 0', 'PX', ARGV[2])
return {'claimed', attempt}
