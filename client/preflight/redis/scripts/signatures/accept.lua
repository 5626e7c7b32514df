-- Accept a signed message once, then again only under the RQ id that carried it first.
-- KEYS: acceptance record, result, state
-- ARGV: signature, RQ id, signed_at, seconds for which a first acceptance is possible, seconds by which signed_at may be
-- ahead of Redis's clock, ttl in s
-- Returns accepted, elsewhere, ended, older, stale, ahead or cancelled.
local record, result, state = unpack(KEYS)
local signature, rq_id, signed_at = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('EXISTS', result) == 1 then
  return 'accepted' -- the stored result is returned
end
local carrier = bounded_field(record, 'carrier:' .. signature, 256)
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
if signed_at <= (tonumber(bounded_field(record, 'newest_ended', 32) or '') or -1) then
  return 'older'
end
local now = math.floor(clock_seconds())
if signed_at < now - tonumber(ARGV[4]) then
  return 'stale'
end
if signed_at > now + tonumber(ARGV[5]) then
  return 'ahead'
end
local is_hash = redis.call('TYPE', state).ok == 'hash' -- cancelled in the queue: no record exists
local cancelled = is_hash and bounded_field(state, 'status', 32) == 'cancelled'
if cancelled and signed_at <= (tonumber(bounded_field(state, 'updated_at', 32) or '') or 0) then
  return 'cancelled'
end
redis.call('HSET', record, 'carrier:' .. signature, rq_id, 'signed_at:' .. signature, ARGV[3])
redis.call('EXPIRE', record, ARGV[6])
return 'accepted'
