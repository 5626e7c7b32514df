-- Take a seat in the group of a job, unless none is free, or the attempt that offers it is over.
-- KEYS: fence, lease, offers of the queue, group, idle workers of the queue
-- ARGV: job id, attempt, worker, what it says of itself, most bytes of the request
-- Returns {taken, full, refused or over; the leader's request where it is taken}.
local fence, lease, offers, group, idle = unpack(KEYS)
local id, attempt, worker = ARGV[1], ARGV[2], ARGV[3]
local current = is_a(fence, 'hash') and bounded_field(fence, 'attempt', 9) == attempt
  and bounded_value(lease, 512) and is_group(group) and bounded_field(group, 'attempt', 9) == attempt
if not current or redis.call('HEXISTS', group, 'over') == 1 then
  if has_offers(offers) then
    redis.call('HDEL', offers, id) -- its leader died, or it is nobody's; a leader that lives offers again within a second
  end
  return {'over', ''}
end
if redis.call('HEXISTS', group, 'refused:' .. worker) == 1 then
  return {'refused', ''}
end
local taken = seated(group)
if #taken >= whole(bounded_field(group, 'seats', 9)) or redis.call('HSTRLEN', group, 'request') > tonumber(ARGV[5]) then
  return {'full', ''}
end
redis.call('HDEL', group, 'order:' .. worker, 'gone:' .. worker)
give_seat(group, worker, ARGV[4])
if is_a(idle, 'zset') then
  redis.call('ZREM', idle, worker)
end
return {'taken', redis.call('HGET', group, 'request') or ''}
