-- End the attempt of a job that has ended.
-- KEYS: fence, lease, cancel by the job's id, cancel by RQ's id
-- ARGV: owner, attempt, ttl in s, failed (0/1): another request may use the id
-- Deletes come first, so that a full Redis accepts the rest.
if not superseded(KEYS[1], ARGV[1], tonumber(ARGV[2])) then
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
  redis.call('HDEL', KEYS[1], 'lost', 'low_memory', 'spared', 'rounds', 'failure', 'running')
  if ARGV[4] == '1' then
    redis.call('HDEL', KEYS[1], 'request')
  end
  redis.call('HSET', KEYS[1], 'deaths', 0)
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return 'ok'
