-- Remove expired entries and those of deleted jobs from one of RQ's registries; the rest of such jobs expires.
-- KEYS: registry, then for each entry: RQ's hash of the job, RQ's results of it, cancel
-- ARGV: whether scores are expiry times (1/0); ttl in s; then the entries
-- Returns the entries of jobs without a time to live, which have scores of -1 or inf.
local registry, now, ttl = KEYS[1], ARGV[1] == '1' and clock_seconds(), ARGV[2]
local kept = {}
local over = {finished = true, failed = true, canceled = true, stopped = true}
for number = 3, #ARGV do
  local entry, job = ARGV[number], 3 * number - 7
  local left = redis.call('TTL', KEYS[job])
  local score = tonumber(redis.call('ZSCORE', registry, entry) or '-1')
  if left == -2 or (now and score >= 0 and score <= now) then
    redis.call('ZREM', registry, entry)
  elseif left == -1 then
    kept[#kept + 1] = entry
  end
  if left ~= -1 and redis.call('TTL', KEYS[job + 1]) == -1 then
    redis.call('EXPIRE', KEYS[job + 1], left > 0 and left or ttl)
  end
  local status = redis.call('TYPE', KEYS[job]).ok == 'hash' and bounded_field(KEYS[job], 'status', 32)
  local dependents = KEYS[job] .. ':dependents' -- RQ adds some after the job's end, and keeps them for ever
  if (left == -2 or over[status]) and redis.call('TTL', dependents) == -1 then
    redis.call('EXPIRE', dependents, ttl)
  end
  if redis.call('TTL', KEYS[job + 2]) == -1 then
    redis.call('EXPIRE', KEYS[job + 2], ttl)
  end
end
return kept
