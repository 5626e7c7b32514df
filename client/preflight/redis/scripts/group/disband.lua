-- End the group of an attempt: its members are told so for a minute.
-- KEYS: fence, offers of the queue, group   ARGV: owner, attempt, job id, seconds
local fence, offers, group = unpack(KEYS)
if superseded(fence, ARGV[1], tonumber(ARGV[2])) then
  return 'superseded'
end
if has_offers(offers) then
  redis.call('HDEL', offers, ARGV[3])
end
redis.call('DEL', group)
redis.call('HSET', group, 'attempt', ARGV[2], 'over', '1')
redis.call('EXPIRE', group, ARGV[4])
return 'ok'
