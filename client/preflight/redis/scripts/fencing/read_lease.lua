-- Return the lease of a job; '' where there is none. One that is longer than any worker's is deleted.
-- KEYS: lease   ARGV: most bytes
if redis.call('STRLEN', KEYS[1]) > tonumber(ARGV[1]) then
  redis.call('DEL', KEYS[1])
end
return redis.call('GET', KEYS[1]) or ''
