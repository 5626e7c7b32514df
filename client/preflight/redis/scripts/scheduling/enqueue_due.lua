-- Enqueue the scheduled jobs that are due, and those that RQ left ready, for the one scheduler of a queue.
-- KEYS: RQ's lock of the scheduler, queue, then registries
-- ARGV: owner, lock in ms, longest lock of another scheduler in ms, now as RQ writes it, most
-- Returns {whether the lock is held by the owner (0/1), jobs enqueued, rate limits to fill...}.
-- A lock that is no scheduler's is overwritten: of another type, longer than a name, without a time to live, or with a
-- longer one than RQ's schedulers and ours take. Entries that are too long for an id are dropped.
local lock, queue = KEYS[1], KEYS[2]
local owner, most = ARGV[1], tonumber(ARGV[5])
local holder, left = bounded_value(lock, 512), redis.call('PTTL', lock)
if holder and holder ~= owner and left >= 0 and left <= tonumber(ARGV[3]) then
  return {0, 0}
end
redis.call('LLEN', queue) -- fails on a wrong type before anything has changed
redis.call('SET', lock, owner, 'PX', ARGV[2])
local over = {finished = true, failed = true, canceled = true, stopped = true, started = true}
local answer, now = {1, 0}, clock_seconds()
for number = 3, #KEYS do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[number], '-inf', now, 'LIMIT', 0, most)) do
    local job = 'rq:job:' .. id
    redis.call('ZREM', KEYS[number], id)
    if #id <= 256 and redis.call('TYPE', job).ok == 'hash' and not over[bounded_field(job, 'status', 32)] then
      local limit = enqueue_waiting(queue, id, job, ARGV[4])
      answer[2] = answer[2] + 1
      answer[#answer + 1] = limit or nil
    end
  end
end
return answer
