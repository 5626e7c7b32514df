-- End an attempt whose job is settled.
-- KEYS: fence, lease, cancel   ARGV: owner, attempt, ttl in s
-- What removes comes first, so that a full Redis takes the rest, too.
if not superseded(KEYS[1], ARGV[1], tonumber(ARGV[2])) then
  redis.call('DEL', KEYS[2], KEYS[3])
  redis.call('HSET', KEYS[1], 'deaths', 0)
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return 'ok'
