-- Enqueue a page of the jobs that depend on a job that has ended, as RQ does: those whose other dependencies have ended,
-- too. A dependency whose record is gone counts as finished.
-- KEYS: the job's dependents
-- ARGV: id, status it ended with, cursor, page, now as RQ writes it, then the queues that may get jobs
-- Returns {next cursor, rate limits to fill, names of queues whose dependents were not enqueued}.
local parent, outcome, cursor, page, date = unpack(ARGV)
local allowed, limits, refused, listed = {}, {}, {}, {}
for number = 6, #ARGV do
  allowed[ARGV[number]] = true
end
local function has_ended(status, tolerant)
  return not status or status == 'finished' or (tolerant and status == 'failed')
end
local function dependencies_met(id, tolerant)
  local dependencies = 'rq:job::' .. id .. ':dependencies'
  if redis.call('TYPE', dependencies).ok ~= 'set' then
    return true
  end
  if redis.call('SCARD', dependencies) > 1000 then
    return false
  end
  for _, other in ipairs(redis.call('SMEMBERS', dependencies)) do
    local job = 'rq:job:' .. other
    if other ~= parent and redis.call('TYPE', job).ok == 'hash'
        and not has_ended(bounded_field(job, 'status', 32), tolerant) then
      return false
    end
  end
  return true
end
if redis.call('TYPE', KEYS[1]).ok ~= 'set' then
  return {'0', limits, refused}
end
local scanned = redis.call('SSCAN', KEYS[1], cursor, 'COUNT', page)
for _, id in ipairs(scanned[2]) do
  local job = 'rq:job:' .. id
  if #id <= 256 and redis.call('TYPE', job).ok == 'hash' then
    local status, origin = bounded_field(job, 'status', 32), bounded_field(job, 'origin', 256)
    local tolerant = bounded_field(job, 'allow_dependency_failures', 1) == '1'
    if status == 'deferred' and origin and has_ended(outcome, tolerant) and dependencies_met(id, tolerant) then
      local kind = redis.call('TYPE', 'rq:queue:' .. origin).ok
      if allowed[origin] and (kind == 'list' or kind == 'none') then
        redis.call('SREM', KEYS[1], id)
        redis.pcall('ZREM', 'rq:deferred:' .. origin, id)
        redis.pcall('SADD', 'rq:queues', 'rq:queue:' .. origin)
        limits[#limits + 1] = enqueue_waiting('rq:queue:' .. origin, id, job, date) or nil
      elseif not listed[origin] then
        listed[origin] = true
        refused[#refused + 1] = origin
      end
    end
  end
end
return {scanned[1], limits, refused}
