-- Reads a store that nobody works on, as a whole: for copying and verifying it.
--
-- ARGV: the version that is expected, or ''; what to do; the arguments of that. Keys are
--       named by their places among all.
-- Answer: 'moved', if it is another version; else 'here' and a list.

-- How many fields or members are looked at together.
local TOGETHER = 1000
-- What keeps short entries quick to find, and is none.
local ANCHOR = string.rep('\255', 1024)

local bring = {}

-- Which store it is, its version, and who wrote that.
function bring.version()
  local numbers = redis.call('HMGET', NUMBERS, 'run', 'version')
  local version = numbers[2] or '0'
  local written = redis.call('HGET', LINEAGE, text(tonumber(version) % LINEAGE_MAX))
  return {numbers[1] or '', version, written or ''}
end

-- How far a copy is, if one fills the store.
function bring.mark()
  return {redis.call('GET', COPYING) or nil}
end

-- key, cursor: where to go on, and then some fields of a hash, in no order
function bring.fields()
  local scanned = redis.call('HSCAN', KEYS[tonumber(ARGV[3])], ARGV[4], 'COUNT', TOGETHER)
  local list = {scanned[1]}
  for i = 1, #scanned[2], 2 do
    if scanned[2][i] ~= ANCHOR then
      list[#list + 1] = scanned[2][i]
    end
  end
  return list
end

-- The newest number that the stream of what is as it came has had: it takes none that is not above it.
function bring.newest_fresh()
  if redis.call('EXISTS', FRESH) == 0 then
    return {'0'}
  end
  local told = redis.call('XINFO', 'STREAM', FRESH)
  for i = 1, #told, 2 do
    if told[i] == 'last-generated-id' then
      return {string.match(told[i + 1], '%d+')}
    end
  end
end

-- number: where to go on, and then some after it of what is as it came; nothing, if there are no more
function bring.fresh()
  local list = {}
  for _, entry in ipairs(redis.call('XRANGE', FRESH, '(' .. ARGV[3], '+', 'COUNT', TOGETHER)) do
    local digits = string.match(entry[1], '%d+')
    local number = tonumber(digits)
    local seq = struct.pack('>I4I4', math.floor(number / 4294967296), number % 4294967296)
    list[1] = digits
    if redis.call('HEXISTS', LIVE, seq) == 0 then
      list[#list + 1] = seq
    end
  end
  return list
end

-- key, the key of a hash beside it or 0, bytes, fields: field, value and the value beside it, of those that are
-- there, until the values weigh more than `bytes`
function bring.rows()
  local key, beside, most = KEYS[tonumber(ARGV[3])], KEYS[tonumber(ARGV[4])], tonumber(ARGV[5])
  local list, weight = {}, 0
  for i = 6, #ARGV do
    local value = redis.call('HGET', key, ARGV[i])
    if key == LIVE then
      value = or_fresh({ARGV[i]}, {value}, 1)[1]
    end
    if value then
      local other = beside and redis.call('HGET', beside, ARGV[i]) or ''
      list[#list + 1] = ARGV[i]
      list[#list + 1] = value
      list[#list + 1] = other
      weight = weight + #value + #other
      if weight > most then
        break
      end
    end
  end
  return list
end

-- triples of a key, a member and ''; or of a key, a field and a value: the places of those that are not there
function bring.lacking()
  local list = {}
  for i = 3, #ARGV, 3 do
    local key, is_there = KEYS[tonumber(ARGV[i])], nil
    if ARGV[i + 2] == '' then
      is_there = redis.call('ZSCORE', key, ARGV[i + 1])
    else
      is_there = redis.call('HGET', key, ARGV[i + 1]) == ARGV[i + 2]
    end
    if not is_there then
      list[#list + 1] = text((i - 3) / 3)
    end
  end
  return list
end

-- keys: how many fields or members each has
function bring.sizes()
  local list = {}
  for i = 3, #ARGV do
    local key = KEYS[tonumber(ARGV[i])]
    if redis.call('TYPE', key).ok == 'zset' then
      list[#list + 1] = text(redis.call('ZCARD', key) - (redis.call('ZSCORE', key, ANCHOR) and 1 or 0))
    else
      list[#list + 1] = text(redis.call('HLEN', key) - redis.call('HEXISTS', key, ANCHOR))
    end
  end
  return list
end

-- key, the member before: the next members of a sorted set
function bring.members()
  local from = ARGV[4] == '' and '-' or '(' .. ARGV[4]
  return redis.call('ZRANGEBYLEX', KEYS[tonumber(ARGV[3])], from, '(' .. ANCHOR, 'LIMIT', 0, TOGETHER)
end

-- key of notes, pairs of when and a receipt's key: the places of those that no note tells of
function bring.unnoted()
  local notes, list, noted = KEYS[tonumber(ARGV[3])], {}, {}
  for i = 4, #ARGV, 2 do
    local when = ARGV[i]
    if not noted[when] then
      noted[when] = {}
      local of_then = redis.call('ZRANGEBYLEX', notes, '[' .. when, '[' .. when .. string.rep('\255', 33))
      for _, note in ipairs(of_then) do
        for at = #when + 1, #note, 32 do
          noted[when][string.sub(note, at, at + 31)] = true
        end
      end
    end
    if not noted[when][ARGV[i + 1]] then
      list[#list + 1] = text((i - 4) / 2)
    end
  end
  return list
end

if ARGV[1] ~= '' and ARGV[1] ~= (redis.call('HGET', NUMBERS, 'version') or '0') then
  return {'moved'}
end
return {'here', bring[ARGV[2]]()}
