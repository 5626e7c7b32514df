-- Give up an execution of a job that another attempt is running; the job goes to the end of the queue.
-- KEYS: RQ's queue, intermediate queue and started registry   ARGV: job id, execution
local queue, intermediate, started = unpack(KEYS)
local id = ARGV[1]
redis.call('LLEN', queue) -- fails on a wrong type before anything has changed
redis.call('LREM', intermediate, 0, id)
remove_execution(started, id, ARGV[2])
if not redis.call('LPOS', queue, id) then
  redis.call('RPUSH', queue, id)
end
return 'ok'
