-- Append events to their job's streams and apply them to its state; each once, in order.
-- KEYS: fence, events, lifecycle, state, result, RQ's job hash, totals, alias
-- ARGV: owner, attempt, JSON object of the last event published by each attempt, ttl in s, records kept, RQ's id,
-- job id, then one JSON object an event: attempt, seq, fields, state, lifecycle, first, result, failure, meta, totals
-- Returns {status, number}: superseded/0, gap/last event known here, ok/last event published.
local fence, events, lifecycle, state, result, job, totals, alias = unpack(KEYS)
local attempt, ttl, rq_id, job_id = tonumber(ARGV[2]), ARGV[4], ARGV[6], ARGV[7]
if superseded(fence, ARGV[1], attempt) then
  return {'superseded', 0}
end
local function last(of)
  return whole(redis.call('HGET', fence, 'seq:' .. of))
end
for of, seq in pairs(cjson.decode(ARGV[3])) do
  if last(of) < seq then
    return {'gap', last(attempt)}
  end
end
for number = 8, #ARGV do
  local event = cjson.decode(ARGV[number])
  if event.seq > last(event.attempt) then
    append_event(redis.call, event, ARGV[5], events, lifecycle, state, totals)
    redis.call('HSET', fence, 'seq:' .. event.attempt, event.seq)
    if event.failure then
      redis.call('HSET', fence, 'failure', event.failure)
    elseif event.first then
      redis.call('HDEL', fence, 'failure')
    end
    if event.first and rq_id ~= job_id then -- each id leads to the other
      redis.call('SET', alias, job_id)
      redis.call('HSET', state, 'rq_id', rq_id)
    elseif event.first then
      redis.call('DEL', alias)
    end
    if event.result then
      redis.call('SET', result, event.result, 'EX', ttl)
    end
    if event.meta and redis.call('TYPE', job).ok == 'hash' then
      redis.call('HSET', job, 'meta', event.meta)
    end
  end
end
for _, key in ipairs({fence, events, lifecycle, state, alias}) do
  redis.call('EXPIRE', key, ttl)
end
return {'ok', last(attempt)}
