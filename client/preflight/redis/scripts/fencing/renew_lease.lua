-- Renew the lease of an attempt.
-- KEYS: fence, lease, cancel by the job's id, cancel by RQ's id
-- ARGV: owner, attempt, number of the renewal, lease in ms, ttl in s, progressed (0/1), digest of the request,
-- low memory (0/1)
-- Returns {superseded or ok, cancelled (0/1), RQ's records lost (0/1)}.
local fence, lease, cancel = KEYS[1], KEYS[2], KEYS[3]
if superseded(fence, ARGV[1], tonumber(ARGV[2])) then
  return {'superseded', 0, 0}
end
redis.call('EXPIRE', fence, ARGV[5]) -- first: after a write that needs no memory, a full Redis accepts the others
redis.call('SET', lease, ARGV[1] .. ' ' .. ARGV[3], 'PX', ARGV[4])
if ARGV[6] == '1' then
  redis.call('HSET', fence, 'deaths', 0, 'spared', 0)
end
redis.call('HSET', fence, 'request', ARGV[7], 'low_memory', ARGV[8])
return {'ok', redis.call('EXISTS', cancel, KEYS[4]) > 0 and 1 or 0, redis.call('HEXISTS', fence, 'lost')}
