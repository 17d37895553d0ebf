-- Rows and bodies of live requests: as they came in FRESH, a stream by their numbers, until something changes; the row is
-- in LIVE then, and the body, if it is another one, in BODY. What is long, or was copied, is in those two from the start.

-- Numbers at most this far apart are read from FRESH together.
local FRESH_GAP = 2
-- How many of it are read together, and how many are kept in mind for who asks for their bodies next.
local FRESH_TOGETHER, FRESH_KEPT = 64, 4096

local function get_all(key, fields)
  local values = {}
  for first = 1, #fields, ARGUMENTS_MAX do
    local part = redis.call('HMGET', key, unpack(fields, first, math.min(first + ARGUMENTS_MAX - 1, #fields)))
    for i = 1, #part do
      values[first + i - 1] = part[i]
    end
  end
  return values
end

-- A number of eight bytes.
local function number_of(seq)
  local high, low = struct.unpack('>I4I4', seq)
  return high * 4294967296 + low
end

-- Whether it is one that a request may have, and no field that somebody else wrote.
local function is_number(seq)
  return #seq == 8 and number_of(seq) < 9007199254740992
end

-- By number: row and body, or false if it is not there; and how many there are.
local fresh, fresh_kept = {}, 0

-- Reads those of these that were not looked for yet.
local function read_fresh(seqs)
  local at = 1
  while at <= #seqs do
    local first = number_of(seqs[at])
    local last, wanted = first, {}
    repeat
      wanted[text(last) .. '-0'] = seqs[at]
      fresh[seqs[at]] = fresh[seqs[at]] or false
      at = at + 1
      local after = seqs[at] and number_of(seqs[at])
      local is_near = after and after > last and after <= last + FRESH_GAP and after < first + FRESH_TOGETHER
      last = is_near and after or last
    until not is_near
    for _, entry in ipairs(redis.call('XRANGE', FRESH, text(first), text(last))) do
      local seq = wanted[entry[1]]
      if seq then
        local value = entry[2][2]
        local length = #value < 4 and 0 or struct.unpack('>I4', value)
        fresh[seq] = {string.sub(value, 5, 4 + length), string.sub(value, 5 + length)}
        fresh_kept = fresh_kept + 1
      end
    end
  end
end

-- The values, and in place of those that are missing what is fresh.
local function or_fresh(seqs, values, place)
  if fresh_kept > FRESH_KEPT then
    fresh, fresh_kept = {}, 0
  end
  local unread = {}
  for i = 1, #seqs do
    if not values[i] and fresh[seqs[i]] == nil and is_number(seqs[i]) then
      unread[#unread + 1] = seqs[i]
    end
  end
  read_fresh(unread)
  for i = 1, #seqs do
    local as_it_came = not values[i] and fresh[seqs[i]]
    values[i] = as_it_came and as_it_came[place] or values[i]
  end
  return values
end

-- Where each of these is listed, and its record; false, if it is not live.
local function rows_of(seqs)
  return or_fresh(seqs, get_all(LIVE, seqs), 1)
end

-- What each of these asks for; false, if it is not live.
local function bodies_of(seqs)
  return or_fresh(seqs, get_all(BODY, seqs), 2)
end
