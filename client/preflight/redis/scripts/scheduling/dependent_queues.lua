-- Return the queues of the first jobs that depend on a job.
-- KEYS: the job's dependents   ARGV: most jobs
local found, listed = {}, {}
if redis.call('TYPE', KEYS[1]).ok == 'set' then
  for _, id in ipairs(redis.call('SSCAN', KEYS[1], 0, 'COUNT', ARGV[1])[2]) do
    local job = 'rq:job:' .. id
    local origin = #id <= 256 and redis.call('TYPE', job).ok == 'hash' and bounded_field(job, 'origin', 256)
    if origin and not listed[origin] then
      listed[origin] = true
      found[#found + 1] = origin
    end
  end
end
return found
