-- Take one of the places of a queue's maintainers: a free one, or the last where one other host holds all of them.
-- KEYS: places   ARGV: worker, its host, ms
-- Returns the number of the place, from 1; 0: none. A key of another type, or without a time to live, is a free place.
local worker, host, free, first = ARGV[1], ARGV[2], nil, nil
local one_host = true
for number, key in ipairs(KEYS) do
  local holder = redis.pcall('GET', key)
  if holder == worker then
    free = number
    break
  elseif type(holder) ~= 'string' or redis.call('PTTL', key) < 0 then
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
