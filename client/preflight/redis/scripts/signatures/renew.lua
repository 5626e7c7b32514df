-- Renew the acceptance record of a running job; restore it where Redis lost it.
-- KEYS: acceptance record   ARGV: signature, RQ id, signed_at, ttl in s
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' or kind == 'hash' then
  redis.call('HSETNX', KEYS[1], 'carrier:' .. ARGV[1], ARGV[2])
  redis.call('HSETNX', KEYS[1], 'signed_at:' .. ARGV[1], ARGV[3])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return kind
