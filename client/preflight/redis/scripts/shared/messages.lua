-- Mark the messages that an RQ id carried as used up, because its job has ended.
local function end_accepted(record, rq_id, ttl)
  if redis.call('TYPE', record).ok ~= 'hash' then
    return
  end
  -- A record has three fields for each message of its job; in a flood of others none is found.
  local names = redis.call('HLEN', record) <= 5000 and redis.call('HKEYS', record) or {}
  for _, name in ipairs(names) do
    local signature = #name <= 80 and string.match(name, '^carrier:(.*)')
    if signature and bounded_field(record, name, #rq_id) == rq_id then
      local signed_at = tonumber(bounded_field(record, 'signed_at:' .. signature, 32) or '') or 0
      local newest = tonumber(bounded_field(record, 'newest_ended', 32) or '') or 0
      redis.call('HSET', record, 'ended:' .. signature, '1', 'newest_ended', math.max(newest, signed_at))
    end
  end
  if redis.call('TTL', record) < tonumber(ttl) then
    redis.call('EXPIRE', record, ttl) -- never sooner: another message of the job may be open
  end
end
