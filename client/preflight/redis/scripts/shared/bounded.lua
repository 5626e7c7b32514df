-- Values that others may have written, read only once their length is known.
-- A string's value; false where there is none, or it has another type or more than `most` bytes.
local function bounded_value(key, most)
  local size = redis.pcall('STRLEN', key) -- an error, which is a table, where it has another type
  if type(size) ~= 'number' or size > most then
    return false
  end
  return redis.call('GET', key)
end
-- A field of a hash; false where there is none, or it has more than `most` bytes.
local function bounded_field(key, name, most)
  return redis.call('HSTRLEN', key, name) <= most and redis.call('HGET', key, name)
end
local function is_a(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
