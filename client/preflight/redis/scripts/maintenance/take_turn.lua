-- Whether it is this worker's turn, at most once per interval for all workers together.
-- KEYS: turn   ARGV: worker, ms until the next turn
-- Returns 1 or 0. A key with a longer time to live, or none, is not ours and is overwritten.
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and left <= tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
