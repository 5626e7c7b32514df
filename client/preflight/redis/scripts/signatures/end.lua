-- Mark the messages that an RQ id carried as used up.
-- KEYS: acceptance record   ARGV: RQ id, ttl in s
end_accepted(KEYS[1], ARGV[1], ARGV[2])
return 'ok'
