-- Renew an execution, unless it has ended: a late heartbeat must not bring it back.
-- KEYS: started registry, job hash   ARGV: RQ's id, execution, worker, now in s, ttl in s, now as RQ writes it
local id, execution = ARGV[1], ARGV[2]
if redis.call('ZSCORE', KEYS[1], id .. ':' .. execution) then
  add_execution(KEYS[1], id, execution, ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
  if redis.call('TYPE', KEYS[2]).ok == 'hash' then
    redis.call('HSET', KEYS[2], 'last_heartbeat', ARGV[6])
  end
end
return 'ok'
