-- Begin an attempt of a job, unless it is done, runs already, or has killed its worker too often.
-- KEYS: fence, lease, result   ARGV: owner, lease in ms, deaths allowed, ttl in s, least number of a new attempt
-- Returns {word, number}: claimed/attempt, done/0, busy/0, poisoned/deaths.
local fence, lease, result = KEYS[1], KEYS[2], KEYS[3]
local owner, deaths_allowed = ARGV[1], tonumber(ARGV[3])
if redis.call('EXISTS', result) == 1 then
  return {'done', 0}
end
local holder = redis.call('GET', lease)
if holder and string.sub(holder, 1, #owner + 1) == owner .. ' ' then
  return {'claimed', tonumber(redis.call('HGET', fence, 'attempt'))} -- the answer to the first call was lost
end
if holder then
  return {'busy', 0}
end
local deaths = tonumber(redis.call('HGET', fence, 'deaths') or '0')
if deaths >= deaths_allowed then
  return {'poisoned', deaths}
end
local attempt = math.max(tonumber(redis.call('HGET', fence, 'attempt') or '0') + 1, tonumber(ARGV[5]))
redis.call('HSET', fence, 'attempt', attempt, 'owner', owner, 'deaths', deaths + 1)
redis.call('EXPIRE', fence, ARGV[4])
redis.call('SET', lease, owner .. ' 0', 'PX', ARGV[2])
return {'claimed', attempt}
