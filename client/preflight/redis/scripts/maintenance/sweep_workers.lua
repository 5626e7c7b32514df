-- Remove workers whose hash has expired from RQ's sets.
-- KEYS: workers of a queue, all workers, then hashes of workers   ARGV: entries that name no worker
local of_queue, all = KEYS[1], KEYS[2]
local function remove(entry)
  redis.call('SREM', of_queue, entry)
  redis.pcall('SREM', all, entry) -- may be of another type
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
