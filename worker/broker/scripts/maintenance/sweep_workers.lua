-- Take workers out of RQ's sets whose hash has expired.
-- KEYS: workers of a queue, all workers, then hashes of workers   ARGV: entries that are no worker's
local of_queue, all = KEYS[1], KEYS[2]
local function remove(entry)
  redis.call('SREM', of_queue, entry)
  redis.pcall('SREM', all, entry) -- of another type it is somebody else's
end
for number = 3, #KEYS do
  if redis.call('EXISTS', KEYS[number]) == 0 then
    remove(KEYS[number])
  end
end
for _, entry in ipairs(ARGV) do
  remove(entry)
end
return 'ok'
