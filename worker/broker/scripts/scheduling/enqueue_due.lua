-- Enqueue the scheduled jobs that are due, and those that RQ left ready, for the one scheduler of a queue.
-- KEYS: RQ's lock of the scheduler, queue, then registries   ARGV: owner, lock in ms, now in s, now as RQ writes it, most
-- Returns {whether the lock is held by the owner (0/1), jobs enqueued, rate limits to fill...}.
-- A lock without a time to live is not RQ's and is overwritten.
local lock, queue = KEYS[1], KEYS[2]
local owner, now, most = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[5])
local holder = redis.call('GET', lock)
if holder and holder ~= owner and redis.call('PTTL', lock) ~= -1 then
  return {0, 0}
end
redis.call('SET', lock, owner, 'PX', ARGV[2])
local over = {finished = true, failed = true, canceled = true, stopped = true, started = true}
local answer = {1, 0}
for number = 3, #KEYS do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[number], '-inf', now, 'LIMIT', 0, most)) do
    local job = 'rq:job:' .. id
    redis.call('ZREM', KEYS[number], id)
    if redis.call('TYPE', job).ok == 'hash' and not over[redis.call('HGET', job, 'status')] then
      local limit = enqueue_waiting(queue, id, job, now, ARGV[4])
      answer[2] = answer[2] + 1
      answer[#answer + 1] = limit or nil
    end
  end
end
return answer
