-- Give a seat up.
-- KEYS: group   ARGV: attempt, worker
if redis.call('HGET', KEYS[1], 'attempt') == ARGV[1] then
  take_seat_away(KEYS[1], ARGV[2])
  redis.call('HDEL', KEYS[1], 'order:' .. ARGV[2])
end
return 'ok'
