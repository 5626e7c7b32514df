-- Show that the attempt lives, and hear whether it shall go on.
-- KEYS: fence, lease, cancel
-- ARGV: owner, attempt, beat, lease in ms, ttl in s, whether it has come further (0/1), digest of the request,
-- whether memory is low (0/1)
-- Returns superseded, or ok; then whether it is cancelled and whether RQ's records were lost (0/1).
local fence, lease, cancel = KEYS[1], KEYS[2], KEYS[3]
if superseded(fence, ARGV[1], tonumber(ARGV[2])) then
  return {'superseded', 0, 0}
end
redis.call('EXPIRE', fence, ARGV[5]) -- first: after a write that takes no memory a full Redis takes the others, too
redis.call('SET', lease, ARGV[1] .. ' ' .. ARGV[3], 'PX', ARGV[4])
if ARGV[6] == '1' then
  redis.call('HSET', fence, 'deaths', 0, 'spared', 0)
end
redis.call('HSET', fence, 'request', ARGV[7], 'low_memory', ARGV[8])
return {'ok', redis.call('EXISTS', cancel), redis.call('HEXISTS', fence, 'lost')}
