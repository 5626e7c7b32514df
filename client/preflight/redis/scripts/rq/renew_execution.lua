-- Renew an execution, unless it has ended: a late heartbeat must not bring it back.
-- KEYS: started registry, job hash, fence   ARGV: RQ's id, execution, worker, ttl in s, now as RQ writes it
local id, execution = ARGV[1], ARGV[2]
if redis.call('ZSCORE', KEYS[1], id .. ':' .. execution) then
  add_execution(KEYS[1], id, execution, ARGV[3], tonumber(ARGV[4]))
  if redis.call('TYPE', KEYS[2]).ok == 'hash' then
    redis.call('HSET', KEYS[2], 'last_heartbeat', ARGV[5])
    local status = bounded_field(KEYS[2], 'status', 32)
    if status ~= 'started' and status ~= 'canceled' and is_running(KEYS[3]) then
      redis.call('HSET', KEYS[2], 'status', 'started') -- somebody else has written it; no attempt has recorded its end
    end
  end
end
return 'ok'
