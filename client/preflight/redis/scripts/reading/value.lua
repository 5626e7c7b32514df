-- Return a string, unless it is too long: that is an error of its data, as a wrong type is.
-- KEYS: the key   ARGV: most bytes
local size = redis.call('STRLEN', KEYS[1])
if size > tonumber(ARGV[1]) then
  return redis.error_reply('WRONGTYPE a value of ' .. size .. ' bytes, of which at most ' .. ARGV[1] .. ' are read')
end
return redis.call('GET', KEYS[1])
