-- Read fields of a job's hash, unless it is too large; in one script, so that nothing grows between check and read.
-- KEYS: the hash   ARGV: most fields, largest field, then the fields to read
-- Returns {type of the key}, {hash, fields}, {hash, fields, field, bytes} or {hash, fields, values}.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' then
  return {kind}
end
local count = redis.call('HLEN', KEYS[1])
if count > tonumber(ARGV[1]) then
  return {kind, count}
end
for number = 3, #ARGV do
  local size = redis.call('HSTRLEN', KEYS[1], ARGV[number])
  if size > tonumber(ARGV[2]) then
    return {kind, count, ARGV[number], size}
  end
end
return {kind, count, redis.call('HMGET', KEYS[1], unpack(ARGV, 3))}
