-- Adds an answer to a list that is somebody else's, once: a marker says that it was.
--
-- Keys: the list; the marker of this answer.
-- Arguments: the command that adds; the answer; how long the marker stays, in milliseconds; how
-- many items the list may have, or 0.
-- Answer: `pushed`, `again` or `full`.
local list, marker = KEYS[1], KEYS[2]
if redis.call('EXISTS', marker) == 1 then
  return 'again'
end
if ARGV[4] ~= '0' and redis.call('LLEN', list) >= tonumber(ARGV[4]) then
  return 'full'
end
-- This fails if the list is something else; nothing is written then.
redis.call(ARGV[1], list, ARGV[2])
redis.call('SET', marker, '', 'PX', ARGV[3])
return 'pushed'
