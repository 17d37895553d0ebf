-- Hands out items of a list that is somebody else's, each under a number of its own. What was
-- handed out before and is not done comes first; the rest is taken from the list. An item is at
-- every moment in the list or among those that were taken, never in both, never in neither.
--
-- Keys: the list; items that were taken, by number; when each was handed out; the last number.
-- Arguments: the command that takes from the list; how many items at most; how many bytes they
-- have, beyond which none is taken; how long ago, in milliseconds, those were handed out that
--            are handed out again.
-- Answer: number, item, number, item, and so on.
local list, taken, taken_at, last = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local pop, items_max, bytes_max, stale_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer, bytes = {}, 0

for _, number in ipairs(redis.call('ZRANGEBYSCORE', taken_at, '-inf', now - stale_ms, 'LIMIT', 0, items_max)) do
  if bytes > bytes_max then
    return answer
  end
  local item = redis.call('HGET', taken, number)
  redis.call('ZADD', taken_at, now, number)
  bytes = bytes + #item
  answer[#answer + 1] = number
  answer[#answer + 1] = item
end

while #answer < 2 * items_max and bytes <= bytes_max do
  local item = redis.call(pop, list)
  if not item then
    break
  end
  local number = redis.call('INCR', last)
  redis.call('HSET', taken, number, item)
  redis.call('ZADD', taken_at, now, number)
  bytes = bytes + #item
  answer[#answer + 1] = tostring(number)
  answer[#answer + 1] = item
end
return answer
