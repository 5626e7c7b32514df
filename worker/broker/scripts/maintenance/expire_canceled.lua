-- Let the hash of a canceled job expire; RQ keeps it for ever.
-- KEYS: RQ's hash of the job   ARGV: ttl in s
if redis.call('TTL', KEYS[1]) == -1 and redis.call('HGET', KEYS[1], 'status') == 'canceled' then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return 'ok'
