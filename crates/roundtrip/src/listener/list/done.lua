-- Forgets items that are in the store, and moves those that no store takes to the rejected
-- ones. An item that is forgotten already is not rejected a second time.
--
-- Keys: items that were taken, by number; when each was handed out; the rejected ones, a list.
-- Arguments: the number of each item and how it is rejected; nothing, if it is in the store.
local taken, taken_at, rejected = KEYS[1], KEYS[2], KEYS[3]
for at = 1, #ARGV, 2 do
  local number, entry = ARGV[at], ARGV[at + 1]
  if entry ~= '' and redis.call('HEXISTS', taken, number) == 1 then
    redis.call('RPUSH', rejected, entry)
  end
  redis.call('HDEL', taken, number)
  redis.call('ZREM', taken_at, number)
end
return 1
