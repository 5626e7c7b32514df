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
local current = is_group(group) and bounded_field(group, 'attempt', 9) == attempt
if not current or redis.call('HEXISTS', group, 'over') == 1 then
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
local taken = seated(group)
local began = moment(bounded_field(group, 'since', 15), now)
local since = string.format('%.0f', began > 0 and began or now)
if offer == '' or #taken >= tonumber(ARGV[5]) then
  if has_offers(offers) then
    redis.call('HDEL', offers, id)
  end
elseif is_a(offers, 'hash') then
  redis.call('HSET', offers, id, since .. ' ' .. attempt .. ' ' .. offer)
  redis.call('EXPIRE', offers, ttl)
end
local older = 0
local all = offer == 'short' and has_offers(offers) and redis.call('HGETALL', offers) or {}
for number = 1, #all, 2 do
  local theirs, state = string.match(all[number + 1], '^(%d+) %d+ (%a+)$')
  if not is_offer(all[number], all[number + 1]) then
    redis.call('HDEL', offers, all[number])
  elseif state == 'short' and (#theirs < #since or #theirs == #since and (theirs < since or theirs == since and all[number] < id)) then
    older = 1
  end
end
local others = 0
if is_a(idle, 'zset') then
  redis.call('ZREM', idle, string.match(owner, '^(.*)/') or owner)
  redis.call('ZREMRANGEBYSCORE', idle, '-inf', string.format('%.0f', now - tonumber(ARGV[8])))
  redis.call('ZREMRANGEBYSCORE', idle, string.format('(%.0f', now), '+inf') -- no worker says so before its time
  others = redis.call('ZCARD', idle)
end
local seats = {}
for number, worker in ipairs(taken) do
  local beat = moment(bounded_field(group, 'beat:' .. worker, 15), now)
  seats[number] = {worker, now - beat, redis.call('HGET', group, 'seat:' .. worker)}
end
return {'led', is_a(queue, 'list') and redis.call('LLEN', queue) or 0, others, older, seats}
