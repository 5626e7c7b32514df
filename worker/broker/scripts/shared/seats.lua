-- Redis's clock, in ms.
local function milliseconds()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
-- The workers that have a seat in a group, in the order of their names.
local function seated(group)
  local found = {}
  for _, field in ipairs(redis.call('HKEYS', group)) do
    found[#found + 1] = string.match(field, '^seat:(.*)')
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
