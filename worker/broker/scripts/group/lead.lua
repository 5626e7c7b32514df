-- Lead the group of a job: offer its seats, give orders, and read who sits there.
-- KEYS: fence, offers of the queue, group, idle workers of the queue, queue
-- ARGV: owner, attempt, ttl in s, job id, seats, request, offer (open, short or ''), ms after which an idle worker is
-- gone, then for each order: worker, order, stays, forgotten, leaves or refused
-- Returns {superseded or led, jobs that wait in the queue, idle workers, whether an older offer is short (0/1),
-- seats: worker, ms since its beat, what it says of itself}.
local fence, offers, group, idle, queue = unpack(KEYS)
local owner, attempt, ttl, id, offer = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[7]
if superseded(fence, owner, tonumber(attempt)) then
  return {'superseded', 0, 0, 0, {}}
end
local now = milliseconds()
if redis.call('HGET', group, 'attempt') ~= attempt or redis.call('HEXISTS', group, 'over') == 1 then
  redis.call('DEL', group)
  redis.call('HSET', group, 'attempt', attempt, 'since', string.format('%.0f', now))
end
redis.call('HSET', group, 'led', string.format('%.0f', now), 'seats', ARGV[5], 'request', ARGV[6])
for number = 9, #ARGV, 3 do
  local worker, order, verdict = ARGV[number], ARGV[number + 1], ARGV[number + 2]
  if verdict ~= 'stays' then
    take_seat_away(group, worker)
  end
  if verdict ~= 'forgotten' then
    redis.call('HSET', group, 'order:' .. worker, order)
  end
  if verdict == 'leaves' or verdict == 'refused' then
    redis.call('HSET', group, 'gone:' .. worker, '1')
  end
  if verdict == 'refused' then
    redis.call('HSET', group, 'refused:' .. worker, '1')
  end
end
redis.call('EXPIRE', group, ttl)
local taken, since = seated(group), redis.call('HGET', group, 'since')
if offer == '' or #taken >= tonumber(ARGV[5]) then
  redis.call('HDEL', offers, id)
else
  redis.call('HSET', offers, id, since .. ' ' .. attempt .. ' ' .. offer)
  redis.call('EXPIRE', offers, ttl)
end
local older = 0
if offer == 'short' then
  local all = redis.call('HGETALL', offers)
  for number = 1, #all, 2 do
    local theirs, state = string.match(all[number + 1], '^(%d+) %d+ (%a+)$')
    if state == 'short' and (#theirs < #since or #theirs == #since and (theirs < since or theirs == since and all[number] < id)) then
      older = 1
    end
  end
end
redis.call('ZREM', idle, string.match(owner, '^(.*)/') or owner)
redis.call('ZREMRANGEBYSCORE', idle, '-inf', string.format('%.0f', now - tonumber(ARGV[8])))
local seats = {}
for number, worker in ipairs(taken) do
  local beat = tonumber(redis.call('HGET', group, 'beat:' .. worker)) or 0
  seats[number] = {worker, math.max(0, now - beat), redis.call('HGET', group, 'seat:' .. worker)}
end
return {'led', redis.call('LLEN', queue), redis.call('ZCARD', idle), older, seats}
