-- A whole number of a fence; what somebody else has put there counts as none.
local function whole(value)
  return value and #value <= 9 and string.match(value, '^%d+$') and tonumber(value) or 0
end
-- Whether a newer attempt has taken over. A fence that is gone or behind (an emptied or restored Redis) is put up again,
-- and remembers that RQ's records of the job have to be, too.
local function superseded(fence, owner, attempt)
  local newest = whole(redis.call('HGET', fence, 'attempt'))
  if newest > attempt then
    return true
  end
  if newest == attempt then
    return redis.call('HGET', fence, 'owner') ~= owner
  end
  redis.call('HSET', fence, 'attempt', attempt, 'owner', owner, 'lost', 1)
  redis.call('EXPIRE', fence, 604800) -- whoever put it up sets its own time to live with the next sign of life
  return false
end
