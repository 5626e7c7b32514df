-- List an entry that is too long for an id in quarantine, under its beginning, its length and a hash of both.
local function note_oversized(quarantine, entry, reason)
  local escaped = string.gsub(string.sub(entry, 1, 64), '[^%w._~-]', function(byte)
    return string.format('%%%02X', string.byte(byte))
  end)
  local name = escaped .. '*' .. string.sub(redis.sha1hex(string.sub(entry, 1, 65536) .. #entry), 1, 16)
  if is_a(quarantine, 'hash') then
    redis.call('HSET', quarantine, name, reason)
  end
end
