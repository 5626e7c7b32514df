-- Record an execution with RQ: registry, execution, the worker's state.
-- KEYS: started registry, worker hash   ARGV: RQ's id, execution, worker, ttl in s
local id, execution, worker = ARGV[1], ARGV[2], ARGV[3]
add_execution(KEYS[1], id, execution, worker, tonumber(ARGV[4]))
redis.call('HSET', KEYS[2], 'state', 'busy', 'current_job', id)
return 'ok'
