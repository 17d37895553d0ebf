-- The leanest queue by hand that loses nothing: completes, claims and enqueues in one call. What it keeps is what
-- the loop by hand keeps on Postgres: leases that end, and receipts that can be forgotten by age.
--
-- KEYS: job (id → payload), queue (ids in order), lease (token and id, by when it ends),
--       receipt (ids that ended, by when they did).
-- ARGV: the token of what is completed, the token for what is claimed, how many are completed, how many are claimed,
--       the time, when leases end; ids that are completed; then id and payload of what is new.
local completed, token, done, claim = ARGV[1] .. ':', ARGV[2] .. ':', tonumber(ARGV[3]), tonumber(ARGV[4])
for i = 7, 6 + done do
  if redis.call('ZREM', KEYS[3], completed .. ARGV[i]) == 1 then
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('ZADD', KEYS[4], ARGV[5], ARGV[i])
  end
end
local claimed = {}
local ids = claim > 0 and redis.call('LPOP', KEYS[2], claim) or {}
for i = 1, #(ids or {}) do
  redis.call('ZADD', KEYS[3], ARGV[6], token .. ids[i])
  claimed[2 * i - 1] = ids[i]
  claimed[2 * i] = redis.call('HGET', KEYS[1], ids[i])
end
for i = 7 + done, #ARGV, 2 do
  if not redis.call('ZSCORE', KEYS[4], ARGV[i]) and redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('RPUSH', KEYS[2], ARGV[i])
  end
end
return claimed
