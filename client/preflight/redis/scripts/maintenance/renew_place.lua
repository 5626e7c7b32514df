-- Renew the place of a maintainer, unless another worker has taken it meanwhile.
-- KEYS: place   ARGV: worker, ms
-- Returns 1 or 0. A key of another type, or with a longer time to live than a place has, is no worker's.
local holder = bounded_value(KEYS[1], 512)
if holder and holder ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if left >= 0 and left <= tonumber(ARGV[2]) then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
