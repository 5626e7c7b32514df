-- Note that a worker is idle and may sit down, and return some of the offers of its queue. What is no offer is dropped.
-- KEYS: offers of the queue, idle workers of the queue   ARGV: worker, most offers
-- Returns job id, offer, job id, offer ...
redis.call('ZADD', KEYS[2], string.format('%.0f', milliseconds()), ARGV[1])
redis.call('EXPIRE', KEYS[2], 60)
if not has_offers(KEYS[1]) then
  return {}
end
local found = {}
local some = redis.call('HRANDFIELD', KEYS[1], ARGV[2], 'WITHVALUES')
for number = 1, #some, 2 do
  if is_offer(some[number], some[number + 1]) then
    found[#found + 1] = some[number]
    found[#found + 1] = some[number + 1]
  else
    redis.call('HDEL', KEYS[1], some[number])
  end
end
return found
