-- Put a job that no longer runs back into its queue.
-- KEYS: fence, lease, RQ's queue, intermediate queue, started registry and job hash
-- ARGV: job id, who asks, a word, end of the queue (front/back), retries left or '', execution or '', ttl in s
-- Who asks is the owner of an attempt, its number being the word; or '' with the lease that was seen dead as the word.
-- Returns superseded, alive, over or queued. What removes comes first, so that a full Redis takes the rest, too.
local fence, lease, queue, intermediate, started, job = unpack(KEYS)
local id, owner, word, side, retries, execution, ttl = unpack(ARGV)
if owner ~= '' then
  if superseded(fence, owner, tonumber(word)) then
    return 'superseded'
  end
  redis.call('DEL', lease)
  redis.call('HSET', fence, 'deaths', 0)
  redis.call('EXPIRE', fence, ttl)
elseif (redis.call('GET', lease) or '') ~= word then
  return 'alive'
end
redis.call('DEL', lease)
redis.call('LREM', intermediate, 0, id)
redis.call('ZREM', started, id, id .. ':' .. execution) -- older versions of RQ wrote the id alone
redis.call('DEL', 'rq:execution:' .. id .. ':' .. execution)
local status = redis.call('HGET', job, 'status')
if not status or status == 'finished' or status == 'failed' or status == 'canceled' or status == 'stopped' then
  return 'over'
end
redis.call('HSET', job, 'status', 'queued')
if retries ~= '' then
  redis.call('HSET', job, 'retries_left', retries)
end
if not redis.call('LPOS', queue, id) then
  redis.call(side == 'front' and 'LPUSH' or 'RPUSH', queue, id)
end
return 'queued'
