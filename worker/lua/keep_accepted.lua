-- Keep the acceptance record of a job that runs; put it up again where Redis lost it.
-- KEYS: acceptance record   ARGV: signature, RQ id, signed_at, ttl in s
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then
  redis.call('HSET', KEYS[1], 'signature', ARGV[1], 'rq_id', ARGV[2], 'signed_at', ARGV[3])
end
if kind == 'none' or kind == 'hash' then
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return kind
