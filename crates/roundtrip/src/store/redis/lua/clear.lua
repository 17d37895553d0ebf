-- Forgets what is left of a group's items, as a part of the commit that forgets the group.
--
-- KEYS: item_of, item, item_body. ARGV: the group.
local low, high = '[' .. ARGV[1], '[' .. ARGV[1] .. string.rep('\255', 8)
local members = redis.call('ZRANGEBYLEX', KEYS[1], low, high)
for i = 1, #members do
  redis.call('HDEL', KEYS[2], string.sub(members[i], -8))
  redis.call('HDEL', KEYS[3], string.sub(members[i], -8))
end
return redis.call('ZREMRANGEBYLEX', KEYS[1], low, high)
