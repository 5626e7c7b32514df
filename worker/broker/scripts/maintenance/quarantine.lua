-- Move an id from a queue to quarantine. Shared keys of another type are left alone.
-- KEYS: intermediate queue, queue, started registry, job hash, quarantine   ARGV: id, its name there, entry, ttl in s
-- Returns the number of entries. Deletes come first, so that a full Redis accepts the rest.
local function is(key, kind)
  return redis.call('TYPE', key).ok == kind
end
for number = 1, 2 do
  if is(KEYS[number], 'list') then
    redis.call('LREM', KEYS[number], 0, ARGV[1])
  end
end
if is(KEYS[3], 'zset') then
  local execution = ARGV[1] .. ':'
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    if entry == ARGV[1] or string.sub(entry, 1, #execution) == execution then
      remove_execution(KEYS[3], ARGV[1], string.sub(entry, #execution + 1))
    end
  end
end
if is(KEYS[4], 'hash') then
  redis.call('HSET', KEYS[4], 'status', 'failed')
  redis.call('EXPIRE', KEYS[4], ARGV[4])
end
if is(KEYS[5], 'hash') or is(KEYS[5], 'none') then
  redis.call('HSET', KEYS[5], ARGV[2], ARGV[3])
  return redis.call('HLEN', KEYS[5])
end
return 0
