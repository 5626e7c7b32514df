-- Return a page of a set, a sorted set or a hash, without what is too long: that is deleted from it.
-- KEYS: the key   ARGV: cursor, page, most bytes of a name, most bytes of a hash's value
-- Returns {next cursor, parts of an entry, name, score or value, name, score or value ...}; of a set, names alone.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then
  return {'0', '1'} -- without a scan: a user may scan keys of one type alone
end
local scans = {set = {'SSCAN', 'SREM', 1}, zset = {'ZSCAN', 'ZREM', 2}, hash = {'HSCAN', 'HDEL', 2}}
local scan, remove, step = unpack(scans[kind] or {'SSCAN', 'SREM', 1})
local page = redis.call(scan, KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found = {page[1], tostring(step)}
for number = 1, #page[2], step do
  local name, value = page[2][number], page[2][number + step - 1]
  if #name > tonumber(ARGV[3]) or (kind == 'hash' and #value > tonumber(ARGV[4])) then
    redis.call(remove, KEYS[1], name)
  else
    for part = number, number + step - 1 do
      found[#found + 1] = page[2][part]
    end
  end
end
return found
