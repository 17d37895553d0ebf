-- Writes what a tick changed: all of it, or nothing.
--
-- ARGV: process, the version that was fetched from, the next one, its tag, the server's time
--       at which the tick thinks it is, the channel and text of a hint; how many numbers
--       follow, and those; then commands: name, key, how many arguments, and those.
-- Answer: 'done' | 'moved' | 'late', and the time.
--
-- Everything is checked before the first write, and no command can fail after it: keys were
-- checked to be of their kinds at the start, and a server that is full refuses the first.

-- How far a tick's time may be from the server's.
local LATE_MS = 5000
local LINEAGE_MAX = 1024

local me, version, next_version, tag = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = server_ms()
if (redis.call('HGET', NUMBERS, 'version') or '0') ~= version then
  give_turn(me)
  return {'moved', now}
end
if math.abs(now - ARGV[5]) > LATE_MS then
  give_turn(me)
  return {'late', now}
end
local at = 9 + ARGV[8]
if ARGV[8] ~= '0' then
  redis.call('HSET', NUMBERS, 'version', next_version, unpack(ARGV, 9, at - 1))
  redis.call('HSET', LINEAGE, text(next_version % LINEAGE_MAX), next_version .. ' ' .. tag)
end
while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  local key = KEYS[tonumber(ARGV[at + 1])]
  if ARGV[at] == 'clear' then
    -- What is left of a group's items.
    local low, high = '[' .. ARGV[at + 3], '[' .. ARGV[at + 3] .. string.rep('\255', 8)
    local members = redis.call('ZRANGEBYLEX', key, low, high)
    for i = 1, #members do
      redis.call('HDEL', ITEM, string.sub(members[i], -8))
      redis.call('HDEL', ITEM_BODY, string.sub(members[i], -8))
    end
    redis.call('ZREMRANGEBYLEX', key, low, high)
  else
    redis.call(ARGV[at], key, unpack(ARGV, at + 3, at + 2 + count))
  end
  at = at + 3 + count
end
give_turn(me)
if ARGV[7] ~= '' then
  redis.call('PUBLISH', ARGV[6], ARGV[7])
end
return {'done', now}
