-- Return fields of a hash; false in place of one that is missing or too long.
-- KEYS: the hash   ARGV: most bytes of each, then the names
local found = {}
for number = 2, #ARGV do
  found[number - 1] = bounded_field(KEYS[1], ARGV[number], tonumber(ARGV[1]))
end
return found
