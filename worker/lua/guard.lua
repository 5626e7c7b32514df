-- Whether a newer attempt has taken over. A fence that is gone or behind (an emptied or restored Redis) is put up again.
local function superseded(fence, owner, attempt)
  local newest = tonumber(redis.call('HGET', fence, 'attempt') or '0')
  if newest > attempt then
    return true
  end
  if newest == attempt then
    return redis.call('HGET', fence, 'owner') ~= owner
  end
  redis.call('HSET', fence, 'attempt', attempt, 'owner', owner)
  return false
end
