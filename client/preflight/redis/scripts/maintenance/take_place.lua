-- Take one of the places of a queue's maintainers: a free one, or the last where one other host holds all of them.
-- KEYS: places   ARGV: worker, its host, ms
-- Returns the number of the place, from 1; 0: none. A place is held by the name of a worker that RQ knows, for no longer
-- than workers take it; a key of another type, with another time to live, or of somebody else is a free place.
local worker, host, free, first = ARGV[1], ARGV[2], nil, nil
local one_host = true
for number, key in ipairs(KEYS) do
  local holder = bounded_value(key, 512)
  local left = redis.call('PTTL', key)
  if holder == worker then
    free = number
    break
  elseif not holder or left < 0 or left > tonumber(ARGV[3]) or redis.call('EXISTS', 'rq:worker:' .. holder) == 0 then
    free = free or number
  else
    local owner = string.match(holder, '^(.*)%.[^.]*%.[^.]*$') or holder
    first = first or owner
    one_host = one_host and owner == first
  end
end
if not free and one_host and first ~= host then
  free = #KEYS
end
if free then
  redis.call('SET', KEYS[free], worker, 'PX', ARGV[3])
end
return free or 0
