-- Mark the messages that an RQ id carried as used up, because its job has ended.
local function end_accepted(record, rq_id, ttl)
  if redis.call('TYPE', record).ok ~= 'hash' then
    return
  end
  local fields = redis.call('HGETALL', record)
  for number = 1, #fields, 2 do
    local signature = string.match(fields[number], '^carrier:(.*)')
    if signature and fields[number + 1] == rq_id then
      local signed_at = tonumber(redis.call('HGET', record, 'signed_at:' .. signature)) or 0
      local newest = tonumber(redis.call('HGET', record, 'newest_ended')) or 0
      redis.call('HSET', record, 'ended:' .. signature, '1', 'newest_ended', math.max(newest, signed_at))
    end
  end
  if redis.call('TTL', record) < tonumber(ttl) then
    redis.call('EXPIRE', record, ttl) -- never sooner: another message of the job may be open
  end
end
