-- Read a whole number of a fence; anything else is 0.
local function whole(value)
  return value and #value <= 9 and string.match(value, '^%d+$') and tonumber(value) or 0
end
-- Whether an attempt has begun whose end was not recorded. Whoever may enqueue may write into RQ's hash of a job, too, so
-- that its status says nothing of a job that runs.
local function is_running(fence)
  return bounded_field(fence, 'running', 1) == '1'
end
-- Whether a newer attempt has taken over. A fence that is lost or behind (an emptied or restored Redis) is restored, and
-- marked as `lost`: RQ's records have to be restored, too.
local function superseded(fence, owner, attempt)
  local newest = whole(bounded_field(fence, 'attempt', 9))
  if newest > attempt then
    return true
  end
  if newest == attempt then
    return bounded_field(fence, 'owner', #owner) ~= owner
  end
  redis.call('HSET', fence, 'attempt', attempt, 'owner', owner, 'lost', 1)
  redis.call('EXPIRE', fence, 604800) -- until the next renewal of the lease
  return false
end
