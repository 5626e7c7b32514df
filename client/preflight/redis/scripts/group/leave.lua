-- Give a seat up.
-- KEYS: group   ARGV: attempt, worker
if is_group(KEYS[1]) and bounded_field(KEYS[1], 'attempt', 9) == ARGV[1] then
  take_seat_away(KEYS[1], ARGV[2])
  redis.call('HDEL', KEYS[1], 'order:' .. ARGV[2])
end
return 'ok'
