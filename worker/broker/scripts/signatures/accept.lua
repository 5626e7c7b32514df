-- Accept a signed message once, then again only under the RQ id that carried it first.
-- KEYS: acceptance record, result, state
-- ARGV: signature, RQ id, signed_at, oldest and newest signed_at of a first acceptance, ttl in s
-- Returns accepted, elsewhere, ended, older, stale, ahead or cancelled.
local record, result, state = unpack(KEYS)
local signature, rq_id, signed_at = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('EXISTS', result) == 1 then
  return 'accepted' -- the stored result is returned
end
local carrier = redis.call('HGET', record, 'carrier:' .. signature)
if carrier then
  if carrier ~= rq_id then
    return 'elsewhere'
  end
  if redis.call('HEXISTS', record, 'ended:' .. signature) == 1 then
    return 'ended'
  end
  redis.call('EXPIRE', record, ARGV[6])
  return 'accepted'
end
if signed_at <= (tonumber(redis.call('HGET', record, 'newest_ended')) or -1) then
  return 'older'
end
if signed_at < tonumber(ARGV[4]) then
  return 'stale'
end
if signed_at > tonumber(ARGV[5]) then
  return 'ahead'
end
local last = redis.pcall('HMGET', state, 'status', 'updated_at') -- cancelled in the queue: no record exists
if last[1] == 'cancelled' and signed_at <= (tonumber(last[2]) or 0) then
  return 'cancelled'
end
redis.call('HSET', record, 'carrier:' .. signature, rq_id, 'signed_at:' .. signature, ARGV[3])
redis.call('EXPIRE', record, ARGV[6])
return 'accepted'
