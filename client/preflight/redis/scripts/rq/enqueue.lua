-- Write a job's hash and append its id to the queue, unless the hash exists; RQ has this as `unique=True` since 2.8.
-- KEYS: job hash, queue   ARGV: job id, then the fields of the hash
-- Returns whether the job was enqueued (0/1).
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('RPUSH', KEYS[2], ARGV[1]) -- first: it fails on a wrong type, before anything has changed
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
