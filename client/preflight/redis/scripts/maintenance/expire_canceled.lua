-- Let the hash of a canceled job expire; RQ keeps it for ever.
-- KEYS: RQ's hash of the job   ARGV: ttl in s
if redis.call('TTL', KEYS[1]) == -1 and bounded_field(KEYS[1], 'status', 32) == 'canceled' then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return 'ok'
