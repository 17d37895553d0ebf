-- Commits a tick that looked at nothing, if all is as it expected: validates first, then writes.
-- With no commands it only validates, for a transaction that watches since.
--
-- ARGV: process, version that is expected, version and tag that the process knows of for certain,
--       the time that it took it to be or '', how far off that may be;
--       'ended' if the process has all live requests at hand, so that only receipts are looked for, or 'all';
--       how many ids have neither a live request nor a receipt, and those ids;
--       how many occurrences have neither, and those;
--       where hints go, and the hint or '';
--       then for each command its name, the place of its key among those declared, how many arguments it has, and those.
-- Answer: 'done' or 'otherwise', and the time. Otherwise nothing is written.

local me, expected, certain, certain_tag = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local taken_for, late_max, has_all_live = ARGV[5], tonumber(ARGV[6]), ARGV[7] == 'ended'

-- Whether none of these fields is in any of these hashes.
local function absent(first, count, hashes)
  for start = first, first + count - 1, ARGUMENTS_MAX do
    local last = math.min(start + ARGUMENTS_MAX, first + count) - 1
    for _, hash in ipairs(hashes) do
      for _, value in ipairs(redis.call('HMGET', hash, unpack(ARGV, start, last))) do
        if value then
          return false
        end
      end
    end
  end
  return true
end

local now = server_ms()
local ids = tonumber(ARGV[8])
local occurrences_at = 9 + ids
local occurrences = tonumber(ARGV[occurrences_at])
local is_kept = redis.call('HGET', LINEAGE, text(tonumber(certain) % LINEAGE_MAX)) == certain .. ' ' .. certain_tag
local is_near = taken_for == '' or math.abs(now - tonumber(taken_for)) <= late_max
if redis.call('HGET', NUMBERS, 'version') ~= expected or not is_kept or not is_near or not is_alone(me, now)
    or not absent(9, ids, has_all_live and {ENDED} or {ID, ENDED})
    or not absent(occurrences_at + 1, occurrences, has_all_live and {SEEN} or {SHOWN, SEEN}) then
  return {'otherwise', now}
end

local at = occurrences_at + occurrences + 1
local channel, hint = ARGV[at], ARGV[at + 1]
at = at + 2
while at <= #ARGV do
  local name, key, count = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local first, last = at + 3, at + 2 + count
  -- Fields and their values, or scores and members: ARGUMENTS_MAX is even, so they stay together.
  for start = first, last, ARGUMENTS_MAX do
    redis.call(name, key, unpack(ARGV, start, math.min(start + ARGUMENTS_MAX - 1, last)))
  end
  at = last + 1
end
if hint ~= '' then
  redis.call('PUBLISH', channel, hint)
end
return {'done', now}
