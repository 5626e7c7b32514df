-- Show that the attempt lives, and hear whether it shall go on.
-- KEYS: fence, lease, cancel   ARGV: owner, attempt, beat, lease in ms, ttl in s, whether it has come further (0/1)
-- Returns superseded, cancelled or ok.
local fence, lease, cancel = KEYS[1], KEYS[2], KEYS[3]
if superseded(fence, ARGV[1], tonumber(ARGV[2])) then
  return 'superseded'
end
redis.call('EXPIRE', fence, ARGV[5]) -- first: after a write that takes no memory a full Redis takes the others, too
redis.call('SET', lease, ARGV[1] .. ' ' .. ARGV[3], 'PX', ARGV[4])
if ARGV[6] == '1' then
  redis.call('HSET', fence, 'deaths', 0)
end
if redis.call('EXISTS', cancel) == 1 then
  return 'cancelled'
end
return 'ok'
