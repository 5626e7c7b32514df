-- Fields that the hash of a group may have: 64 seats have some 400, and workers that left leave one or two each.
local MOST_FIELDS = 5000
-- Bytes of a worker's name, and of what it says of itself or is told.
local MOST_NAME, MOST_SAID = 200, 4096
-- Whether a key can be the hash of a group: neither another type, nor flooded.
local function is_group(group)
  return is_a(group, 'hash') and redis.call('HLEN', group) <= MOST_FIELDS
end
-- The workers that have a seat in a group, in the order of their names. What is no seat is taken away.
local function seated(group)
  local found = {}
  for _, field in ipairs(redis.call('HKEYS', group)) do
    local worker = string.match(field, '^seat:(.*)')
    if worker and (#worker > MOST_NAME or redis.call('HSTRLEN', group, field) > MOST_SAID) then
      redis.call('HDEL', group, field)
    else
      found[#found + 1] = worker
    end
  end
  table.sort(found)
  return found
end
local function give_seat(group, worker, said)
  redis.call('HSET', group, 'seat:' .. worker, said, 'beat:' .. worker, string.format('%.0f', milliseconds()))
end
local function take_seat_away(group, worker)
  redis.call('HDEL', group, 'seat:' .. worker, 'beat:' .. worker)
end
-- Whether an offer is one that a leader made: ms since which seats are offered, attempt, open or short.
local function is_offer(id, offer)
  return #id <= 64 and #offer <= 40 and (string.match(offer, '^%d+ %d+ open$') or string.match(offer, '^%d+ %d+ short$'))
end
-- Whether a key can be the offers of a queue. Leaders repeat theirs each second, so that a flood of others may be dropped.
local function has_offers(offers)
  if redis.call('TYPE', offers).ok ~= 'hash' then
    return false
  end
  if redis.call('HLEN', offers) > MOST_FIELDS then
    redis.call('UNLINK', offers)
    return false
  end
  return true
end
