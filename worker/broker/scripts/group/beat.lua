-- Keep a seat, and read the leader's order. A seat that Redis lost is taken again, one that was taken away is not.
-- KEYS: group   ARGV: attempt, worker, what it says of itself
-- Returns {seated, over or lost; the leader's order or ''; ms since the leader was heard}.
-- Lost: Redis knows no group of this job, as after a loss of its data.
local group, worker = KEYS[1], ARGV[2]
local attempt = redis.call('HGET', group, 'attempt')
if not attempt then
  return {'lost', '', 0}
end
if attempt ~= ARGV[1] or redis.call('HEXISTS', group, 'over') == 1 then
  return {'over', '', 0}
end
local order = redis.call('HGET', group, 'order:' .. worker)
if redis.call('HEXISTS', group, 'gone:' .. worker) == 0 then
  local sits = redis.call('HEXISTS', group, 'seat:' .. worker) == 1
  if sits or #seated(group) < whole(redis.call('HGET', group, 'seats')) then
    give_seat(group, worker, ARGV[3])
  elseif not order then
    return {'over', '', 0}
  end
end
local heard = tonumber(redis.call('HGET', group, 'led')) or 0
return {'seated', order or '', math.max(0, milliseconds() - heard)}
