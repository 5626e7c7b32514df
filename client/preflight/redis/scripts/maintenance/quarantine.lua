-- Move an id from a queue to quarantine. Shared keys of another type are left alone.
-- KEYS: intermediate queue, queue, started registry, job hash, quarantine, jobs whose dependents are to be released, then
-- those of the job's id: events, lifecycle, state; and totals
-- ARGV: id, its name there, entry, ttl in s, records kept, its failure as a JSON event or ''
-- Returns {entries, moved}: 0 where another worker, or an earlier call, has moved it and published its failure.
-- Deletes come first, so that a full Redis accepts the rest.
local found = 0
local function is(key, kind)
  return redis.call('TYPE', key).ok == kind
end
for number = 1, 2 do
  if is(KEYS[number], 'list') then
    found = found + redis.call('LREM', KEYS[number], 0, ARGV[1])
  end
end
if is(KEYS[3], 'zset') then
  local execution = ARGV[1] .. ':'
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[3], 0, 9999)) do
    if entry == ARGV[1] or string.sub(entry, 1, #execution) == execution then
      remove_execution(KEYS[3], ARGV[1], string.sub(entry, #execution + 1))
      found = found + 1
    end
  end
end
local listed = is(KEYS[5], 'hash')
local moved = found > 0 or not (listed and redis.call('HEXISTS', KEYS[5], ARGV[2]) == 1)
if is(KEYS[4], 'hash') then
  moved = moved or bounded_field(KEYS[4], 'status', 32) ~= 'failed'
  redis.call('HSET', KEYS[4], 'status', 'failed')
  redis.call('EXPIRE', KEYS[4], ARGV[4])
end
if moved and is(KEYS[4] .. ':dependents', 'set') then
  redis.pcall('HSET', KEYS[6], ARGV[1], 'failed')
end
expire_dependencies(ARGV[1], ARGV[4])
if moved and ARGV[6] ~= '' then
  append_event(redis.pcall, cjson.decode(ARGV[6]), ARGV[5], unpack(KEYS, 7, 10))
  for number = 7, 9 do
    redis.call('EXPIRE', KEYS[number], ARGV[4])
  end
end
if listed or is(KEYS[5], 'none') then
  redis.call('HSET', KEYS[5], ARGV[2], ARGV[3])
  return {redis.call('HLEN', KEYS[5]), moved and 1 or 0}
end
return {0, moved and 1 or 0}
