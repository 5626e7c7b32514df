-- Redis's clock, the only one that schedules and expiries are compared with: those of workers may be hours apart.
local function milliseconds()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
local function clock_seconds()
  local now = redis.call('TIME')
  return now[1] + now[2] / 1000000
end
-- A moment in ms that was written before; anything else, and one to come, is 0.
local function moment(value, now)
  local found = value and #value <= 15 and string.match(value, '^%d+$') and tonumber(value) or 0
  return found <= now and found or 0
end
