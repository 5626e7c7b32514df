-- End an attempt whose job is settled.
-- KEYS: fence, lease, cancel
-- ARGV: owner, attempt, ttl in s, whether another request may have this id from now on, because this one failed (0/1)
-- What removes comes first, so that a full Redis takes the rest, too.
if not superseded(KEYS[1], ARGV[1], tonumber(ARGV[2])) then
  redis.call('DEL', KEYS[2], KEYS[3])
  redis.call('HDEL', KEYS[1], 'lost', 'low_memory', 'spared', 'rounds', 'failure')
  if ARGV[4] == '1' then
    redis.call('HDEL', KEYS[1], 'request')
  end
  redis.call('HSET', KEYS[1], 'deaths', 0)
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return 'ok'
