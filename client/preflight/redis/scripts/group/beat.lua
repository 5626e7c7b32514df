-- Keep a seat, and read the leader's order. A seat that Redis lost is taken again, one that was taken away is not.
-- KEYS: group   ARGV: attempt, worker, what it says of itself
-- Returns {seated, over or lost; the leader's order or ''; ms since the leader was heard}.
-- Lost: Redis knows no group of this job, as after a loss of its data, or has garbage in its place.
local group, worker = KEYS[1], ARGV[2]
local attempt = is_group(group) and bounded_field(group, 'attempt', 9)
if not attempt then
  return {'lost', '', 0}
end
if attempt ~= ARGV[1] or redis.call('HEXISTS', group, 'over') == 1 then
  return {'over', '', 0}
end
local order = bounded_field(group, 'order:' .. worker, MOST_SAID)
if redis.call('HEXISTS', group, 'gone:' .. worker) == 0 then
  local sits = redis.call('HEXISTS', group, 'seat:' .. worker) == 1
  if sits or #seated(group) < whole(bounded_field(group, 'seats', 9)) then
    give_seat(group, worker, ARGV[3])
  elseif not order then
    return {'over', '', 0}
  end
end
local now = milliseconds()
return {'seated', order or '', now - moment(bounded_field(group, 'led', 15), now)}
