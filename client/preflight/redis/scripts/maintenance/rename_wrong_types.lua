-- Rename keys of another type than expected.
-- KEYS: the keys   ARGV: suffix of the new names, then the expected type of each
-- Returns key and type of each renamed key, in turn.
local renamed = {}
for number, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= ARGV[number + 1] then
    redis.call('RENAME', key, key .. ARGV[1])
    renamed[#renamed + 1] = key
    renamed[#renamed + 1] = kind
  end
end
return renamed
