-- Return what was taken from a queue and has not ended. What is too long for an id is taken out and listed in quarantine:
-- it must reach no worker, as it may be larger than a worker's memory.
-- KEYS: started registry, intermediate queue, quarantine   ARGV: most bytes, most entries of each, entry in quarantine,
-- seconds for which the hash of such a job is kept
-- Returns {started, taken, entries taken out}.
local most, count, found, removed = tonumber(ARGV[1]), tonumber(ARGV[2]), {{}, {}}, 0
for number = 1, 2 do
  local key = KEYS[number]
  local read = number == 1 and 'ZRANGE' or 'LRANGE'
  for _, entry in ipairs(redis.call(read, key, 0, count - 1)) do
    if #entry <= most then
      table.insert(found[number], entry)
    else
      if number == 1 then
        redis.call('ZREM', key, entry)
      else
        redis.call('LREM', key, 0, entry)
      end
      removed = removed + 1
      note_oversized(KEYS[3], entry, ARGV[3])
      if is_a('rq:job:' .. entry, 'hash') then
        redis.call('EXPIRE', 'rq:job:' .. entry, ARGV[4])
      end
    end
  end
end
return {found[1], found[2], removed}
