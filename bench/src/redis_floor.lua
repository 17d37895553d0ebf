-- The leanest queue by hand: completes, claims and enqueues in one call.
--
-- KEYS: job (id → payload), queue (ids in order), lease (id → token), receipt (ids that ended).
-- ARGV: the token of what is completed, the token for what is claimed, how many are completed,
--       how many are claimed; ids that are completed; then id and payload of what is new.
local done, claim = tonumber(ARGV[3]), tonumber(ARGV[4])
for i = 5, 4 + done do
  if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[1] then
    redis.call('HDEL', KEYS[3], ARGV[i])
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('SADD', KEYS[4], ARGV[i])
  end
end
local claimed = {}
local ids = claim > 0 and redis.call('LPOP', KEYS[2], claim) or {}
for i = 1, #(ids or {}) do
  redis.call('HSET', KEYS[3], ids[i], ARGV[2])
  claimed[2 * i - 1] = ids[i]
  claimed[2 * i] = redis.call('HGET', KEYS[1], ids[i])
end
for i = 5 + done, #ARGV, 2 do
  if redis.call('SISMEMBER', KEYS[4], ARGV[i]) == 0 and redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('RPUSH', KEYS[2], ARGV[i])
  end
end
return claimed
