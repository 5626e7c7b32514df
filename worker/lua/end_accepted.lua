-- Mark the message of a job that has ended as used up; that of another RQ id is left alone.
-- KEYS: acceptance record   ARGV: RQ id, ttl in s
if redis.call('TYPE', KEYS[1]).ok == 'hash' and redis.call('HGET', KEYS[1], 'rq_id') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'ended', '1')
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
return 'ok'
