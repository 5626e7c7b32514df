-- RQ's records of an execution. A key of one job that has another type than RQ's is deleted.
local function of_type(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    redis.call('DEL', key)
  end
  return key
end
-- Let RQ's sets of a job's dependencies and dependents expire; RQ keeps them for ever.
local function expire_dependencies(id, ttl)
  redis.call('EXPIRE', 'rq:job:' .. id .. ':dependents', ttl)
  redis.call('EXPIRE', 'rq:job::' .. id .. ':dependencies', ttl)
end
local function add_execution(started, id, execution, worker, ttl)
  local now = clock_seconds()
  local record = of_type('rq:execution:' .. id .. ':' .. execution, 'hash')
  redis.call('HSET', record, 'id', execution, 'job_id', id, 'worker_name', worker, 'last_heartbeat', now)
  redis.call('HSETNX', record, 'created_at', now)
  redis.call('EXPIRE', record, ttl)
  local executions = of_type('rq:executions:' .. id, 'zset')
  redis.call('ZADD', executions, math.floor(now) + ttl + 60, execution)
  redis.call('EXPIRE', executions, ttl + 60)
  redis.call('ZADD', started, math.floor(now) + ttl, id .. ':' .. execution)
  local running = of_type('rq:worker:' .. worker .. ':executions', 'set')
  redis.call('SADD', running, id .. ':' .. execution)
  redis.call('EXPIRE', running, ttl + 60)
end
local function remove_execution(started, id, execution)
  redis.call('ZREM', started, id, id .. ':' .. execution) -- older versions of RQ wrote the id alone
  if execution == '' then
    return
  end
  local record = of_type('rq:execution:' .. id .. ':' .. execution, 'hash')
  local worker = bounded_field(record, 'worker_name', 512)
  if worker then
    redis.call('SREM', of_type('rq:worker:' .. worker .. ':executions', 'set'), id .. ':' .. execution)
  end
  redis.call('DEL', record)
  redis.call('ZREM', of_type('rq:executions:' .. id, 'zset'), execution)
end
