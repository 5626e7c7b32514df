-- Read a whole number of a fence; anything else is 0.
local function whole(value)
  return value and #value <= 9 and string.match(value, '^%d+$') and tonumber(value) or 0
end
-- Whether a newer attempt has taken over. A fence that is lost or behind (an emptied or restored Redis) is restored, and
-- marked as `lost`: RQ's records have to be restored, too.
local function superseded(fence, owner, attempt)
  local newest = whole(redis.call('HGET', fence, 'attempt'))
  if newest > attempt then
    return true
  end
  if newest == attempt then
    return redis.call('HGET', fence, 'owner') ~= owner
  end
  redis.call('HSET', fence, 'attempt', attempt, 'owner', owner, 'lost', 1)
  redis.call('EXPIRE', fence, 604800) -- until the next renewal of the lease
  return false
end
