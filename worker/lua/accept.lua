-- Accept a signed message for its job, once: it comes again only under the RQ id that carried it first.
-- KEYS: acceptance record, result, state
-- ARGV: signature, RQ id, signed_at, oldest and newest signed_at of a first acceptance, ttl in s
-- Returns accepted, elsewhere, ended, older, stale, ahead or cancelled.
local record, result, state = unpack(KEYS)
local signature, rq_id, signed_at = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('EXISTS', result) == 1 then
  return 'accepted' -- it is given the stored result, and is not trained
end
local known = redis.call('HMGET', record, 'signature', 'rq_id', 'signed_at', 'ended')
if known[1] == signature then
  if known[2] ~= rq_id then
    return 'elsewhere'
  end
  if known[4] then
    return 'ended'
  end
  redis.call('EXPIRE', record, ARGV[6])
  return 'accepted'
end
if known[1] and signed_at <= (tonumber(known[3]) or 0) then
  return 'older'
end
if signed_at < tonumber(ARGV[4]) then
  return 'stale'
end
if signed_at > tonumber(ARGV[5]) then
  return 'ahead'
end
local last = redis.pcall('HMGET', state, 'status', 'updated_at') -- cancelled in the queue: there is no record
if last[1] == 'cancelled' and signed_at <= (tonumber(last[2]) or 0) then
  return 'cancelled'
end
redis.call('DEL', record)
redis.call('HSET', record, 'signature', signature, 'rq_id', rq_id, 'signed_at', ARGV[3])
redis.call('EXPIRE', record, ARGV[6])
return 'accepted'
