-- Brings what a tick or a read wants, as it is at one version.
--
-- ARGV: process, 'tick', 'alone' or 'read', the version that is expected, '*' for any, or '' if nothing is wanted, the version and tag
--       that the process knows of for certain or '', the fixtures' version that it has; then
--       for each want its name, how many arguments it has, and those.
-- Answer: what became of the call; the time; then
--   'wait', time, how many are before this process
--   'moved', time, lineage, numbers, fixtures    another version than expected
--   'here', time, lineage, numbers, fixtures, what each want brings; the numbers and fixtures only if any version would do
-- where lineage is 'lost' if what the process knows for certain is not there.
--
-- Writes nothing but the turn.

-- How many rows beyond those wanted one lease looks at, where deadlines have passed.
local PASS_OVER_MAX = 1024
-- How many are looked at together where it is not known how many will do.
local MERGE = 64
-- How many payloads are read together where their lengths count.
local WEIGH = 32
-- The state of those that may be handed out.
local QUEUED = 1

local me, mode, expected = ARGV[1], ARGV[2], ARGV[3]
local certain, certain_tag, fixtures_known = ARGV[4], ARGV[5], ARGV[6]
local NUMBER_FIELDS = {'version', 'run', 'epoch', 'seq', 'entry', 'receipt', 'item', 'group', 'floor', 'fixtures', 'format', 'needs'}

local function arguments(first, last)
  local list = {}
  for i = first, last do
    list[#list + 1] = ARGV[i]
  end
  return list
end

-- The ids that operations name, which several wants share: '*' stands for them.
local named_ids = {}

local function ids_at(first, last)
  if ARGV[first] == '*' then
    return named_ids
  end
  return arguments(first, last)
end

-- Pairs of field and value, of those that are there.
local function pairs_of(fields, values)
  local list = {}
  for i = 1, #fields do
    if values[i] then
      list[#list + 1] = fields[i]
      list[#list + 1] = values[i]
    end
  end
  return list
end

local function found(key, fields)
  return pairs_of(fields, get_all(key, fields))
end

local function found_rows(seqs)
  return pairs_of(seqs, rows_of(seqs))
end

-- Members from `prefix .. first` to `prefix .. last`, both included.
local function between(key, prefix, first, last, limit)
  return redis.call('ZRANGEBYLEX', key, '[' .. prefix .. first, '[' .. prefix .. last, 'LIMIT', 0, limit)
end

local FIRST8, LAST8 = string.rep('\0', 8), string.rep('\255', 8)

-- The last eight bytes of each member: a request's, a group's or an item's number.
local function numbers_of(members, into)
  local list = into or {}
  for i = 1, #members do
    list[#list + 1] = string.sub(members[i], -8)
  end
  return list
end

-- A record begins with the request's number, seven bits to a byte, and the length and bytes
-- of its id.
local function id_of(row)
  local flags = string.byte(row, 2)
  local at = 3
  for _, bit in ipairs({4, 2, 1}) do
    if flags % (bit * 2) >= bit then
      at = at + 8
    end
  end
  while string.byte(row, at) >= 128 do
    at = at + 1
  end
  return string.sub(row, at + 2, at + 33)
end

-- Numbers of all live requests with this id, once looked up.
local seqs_by_id = {}

local function look_up(ids)
  local new = {}
  for i = 1, #ids do
    if not seqs_by_id[ids[i]] then
      new[#new + 1] = ids[i]
    end
  end
  if #new == 0 then
    return
  end
  local heads = get_all(ID, new)
  local queued = redis.call('EXISTS', BEHIND) == 1
  for i = 1, #new do
    local seqs = {}
    if heads[i] then
      seqs[1] = heads[i]
      if queued then
        numbers_of(between(BEHIND, new[i], FIRST8, LAST8, -1), seqs)
      end
    end
    seqs_by_id[new[i]] = seqs
  end
end

local function seqs_of(ids)
  look_up(ids)
  local list = {}
  for i = 1, #ids do
    local seqs = seqs_by_id[ids[i]]
    for j = 1, #seqs do
      list[#list + 1] = seqs[j]
    end
  end
  return list
end

-- Whether a deadline lies in one of the ranges, which are pairs of eight bytes each.
local function is_reached(row, ranges)
  if string.byte(row, 2) < 4 then
    return false
  end
  local high, low = struct.unpack('>I4I4', string.sub(row, 3, 10))
  for i = 1, #ranges, 4 do
    local after_first = high > ranges[i] or (high == ranges[i] and low >= ranges[i + 1])
    local before_last = high < ranges[i + 2] or (high == ranges[i + 2] and low <= ranges[i + 3])
    if after_first and before_last then
      return true
    end
  end
  return false
end

local function ranges_at(first, last)
  local ranges = {}
  for i = first, last do
    local high, low = struct.unpack('>I4I4', ARGV[i])
    ranges[#ranges + 1] = high
    ranges[#ranges + 1] = low
  end
  return ranges
end

-- Number, row and body of each of these rows, until the bodies weigh as much as `bytes`.
local function with_bodies(seqs, rows, bytes)
  local list, weight = {}, 0
  for first = 1, #seqs, WEIGH do
    local part = {unpack(seqs, first, math.min(first + WEIGH - 1, #seqs))}
    local bodies = bodies_of(part)
    for i = 1, #part do
      if weight >= bytes then
        return list
      end
      local body = bodies[i] or ''
      weight = weight + #body
      list[#list + 1] = part[i]
      list[#list + 1] = rows[first + i - 1]
      list[#list + 1] = body
    end
  end
  return list
end

-- Where requests of a route in a state are listed by number, given both: keys and what members begin with. Those that
-- are queued in turn 0 are in the queue alone.
local function lists_of(prefixes)
  local lists = {}
  for i = 1, #prefixes do
    lists[#lists + 1] = {key = STATE, prefix = prefixes[i]}
    if string.byte(prefixes[i], 3) == QUEUED then
      lists[#lists + 1] = {key = QUEUE, prefix = string.sub(prefixes[i], 1, 2) .. FIRST8}
    end
  end
  return lists
end

-- The first of several lists of members that end in a number, by that number.
local function merged(prefixes, after, limit)
  local lists, list = lists_of(prefixes), {}
  local function refill(of, from)
    local low, high = '(' .. of.prefix .. from, '[' .. of.prefix .. LAST8
    of.seqs = numbers_of(redis.call('ZRANGEBYLEX', of.key, low, high, 'LIMIT', 0, math.min(limit, MERGE)))
    of.next = 1
  end
  for at = 1, #lists do
    refill(lists[at], after)
  end
  while #list < limit do
    local best, lowest = nil, nil
    for at = 1, #lists do
      local seq = lists[at].seqs[lists[at].next]
      if seq and (not lowest or number_of(seq) < lowest) then
        best, lowest = lists[at], number_of(seq)
      end
    end
    if not best then
      break
    end
    list[#list + 1] = best.seqs[best.next]
    best.next = best.next + 1
    if best.next > #best.seqs then
      refill(best, best.seqs[#best.seqs])
    end
  end
  return list
end

local bring = {}

-- how many ids, occurrences; those, then slots
function bring.named(first, last)
  local ids_last = first + 1 + ARGV[first]
  local occurrences_last = ids_last + ARGV[first + 1]
  local ids, known = {}, {}
  local function add(id)
    if not known[id] then
      known[id] = true
      ids[#ids + 1] = id
    end
  end
  named_ids = arguments(first + 2, ids_last)
  for i = 1, #named_ids do
    add(named_ids[i])
  end
  local shown = get_all(SHOWN, arguments(ids_last + 1, occurrences_last))
  local seqs = {}
  for i = 1, #shown do
    if shown[i] then
      seqs[#seqs + 1] = shown[i]
    end
  end
  local rows = rows_of(seqs)
  for i = 1, #rows do
    if rows[i] then
      add(id_of(rows[i]))
    end
  end
  local parcels = get_all(PARCEL, arguments(occurrences_last + 1, last))
  for i = 1, #parcels do
    if parcels[i] then
      for at = 0, struct.unpack('>I4', parcels[i]) - 1 do
        add(string.sub(parcels[i], 5 + 32 * at, 36 + 32 * at))
      end
    end
  end
  return found_rows(seqs_of(ids))
end

-- ids
function bring.behind(first, last)
  local seqs = {}
  if redis.call('EXISTS', BEHIND) == 1 then
    for i = first, last do
      numbers_of(between(BEHIND, ARGV[i], FIRST8, LAST8, -1), seqs)
    end
  end
  return found_rows(seqs)
end

-- ids, or '*'
function bring.bodies(first, last)
  local seqs = seqs_of(ids_at(first, last))
  return pairs_of(seqs, bodies_of(seqs))
end

-- bytes, numbers
function bring.bodies_of(first, last)
  local seqs, list, weight = arguments(first + 1, last), {}, 0
  for from = 1, #seqs, WEIGH do
    if weight > tonumber(ARGV[first]) then
      break
    end
    local part = {unpack(seqs, from, math.min(from + WEIGH - 1, #seqs))}
    local bodies = bodies_of(part)
    for i = 1, #part do
      if bodies[i] and weight <= tonumber(ARGV[first]) then
        list[#list + 1] = part[i]
        list[#list + 1] = bodies[i]
        weight = weight + #bodies[i]
      end
    end
  end
  return list
end

-- ids, or '*'
function bring.responses(first, last)
  return found(RESPONSE, seqs_of(ids_at(first, last)))
end

-- ids, or '*'
function bring.ended(first, last)
  return found(ENDED, ids_at(first, last))
end

-- occurrences
function bring.seen(first, last)
  return found(SEEN, arguments(first, last))
end

-- ids, or '*'
function bring.groups_of(first, last)
  if redis.call('EXISTS', GROUP_OF) == 0 then
    return {}
  end
  local ids, groups = ids_at(first, last), {}
  for i = 1, #ids do
    numbers_of(between(GROUP_OF, ids[i], FIRST8, LAST8, -1), groups)
  end
  return found(GROUP, groups)
end

-- Adds the numbers and rows of the first so many of the queue between two members whose deadlines are not reached.
local function take_turns(after, high, wanted, ranges, seqs, rows)
  local taken, passed = 0, 0
  while taken < wanted and passed <= PASS_OVER_MAX do
    local count = passed > 0 and math.max(wanted - taken, MERGE) or wanted - taken
    local members = redis.call('ZRANGEBYLEX', QUEUE, after, high, 'LIMIT', 0, count)
    if #members == 0 then
      return
    end
    local part = numbers_of(members)
    local part_rows = rows_of(part)
    for i = 1, #part do
      if is_reached(part_rows[i], ranges) then
        passed = passed + 1
      elseif taken < wanted then
        taken = taken + 1
        seqs[#seqs + 1] = part[i]
        rows[#rows + 1] = part_rows[i]
      end
    end
    after = '(' .. members[#members]
  end
end

-- route, how many, bytes, from, ranges
function bring.turns(first, last)
  local route, wanted, bytes, from = ARGV[first], tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]), ARGV[first + 3]
  local ranges, seqs, rows = ranges_at(first + 4, last), {}, {}
  take_turns('[' .. route .. from, '[' .. route .. LAST8 .. LAST8, wanted, ranges, seqs, rows)
  if from ~= FIRST8 then
    take_turns('[' .. route, '(' .. route .. from, wanted, ranges, seqs, rows)
  end
  return with_bodies(seqs, rows, bytes)
end

-- route, how many, bytes, turn and number after which, ranges
function bring.next(first, last)
  local route, wanted, bytes, after = ARGV[first], tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]), ARGV[first + 3]
  local ranges, seqs, rows = ranges_at(first + 4, last), {}, {}
  take_turns('(' .. route .. after, '[' .. route .. LAST8 .. LAST8, wanted, ranges, seqs, rows)
  return with_bodies(seqs, rows, bytes)
end

-- claims
function bring.claimed(first, last)
  if redis.call('EXISTS', CLAIM) == 0 then
    return {}
  end
  local seqs = {}
  for i = first, last do
    numbers_of(between(CLAIM, ARGV[i], FIRST8, LAST8, -1), seqs)
  end
  return with_bodies(seqs, rows_of(seqs), math.huge)
end

-- Numbers listed under a moment in one of the ranges, the first of each.
local function listed(key, first, last)
  local seqs = {}
  for i = first + 1, last, 2 do
    numbers_of(redis.call('ZRANGEBYLEX', key, '[' .. ARGV[i], '[' .. ARGV[i + 1] .. LAST8, 'LIMIT', 0, ARGV[first]), seqs)
  end
  return seqs
end

-- how many, ranges
function bring.due(first, last)
  return found_rows(listed(DUE, first, last))
end

-- how many, ranges
function bring.overdue(first, last)
  return found_rows(listed(DEADLINE, first, last))
end

-- how many, one range
function bring.leased(first, last)
  return found_rows(listed(LEASE, first, last))
end

-- how many, one range
function bring.dead(first, last)
  return found_rows(listed(DEAD, first, last))
end

-- how many, ranges
function bring.fired(first, last)
  return found(GROUP, listed(GROUP_TIMER, first, last))
end

-- how many, one range
function bring.outlived(first, last)
  return found(GROUP, listed(GROUP_FORGET, first, last))
end

-- Receipts are noted to be forgotten many at a time: when, and then their keys. One that
-- was replaced since says another time. Brings the note and those of its keys that hold.
local function expired(key, receipts, length, low, high, limit, list)
  local notes, count = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit), 0
  for i = 1, #notes do
    if count >= limit then
      return
    end
    local when, keys = string.sub(notes[i], 1, length), {}
    for at = length + 1, #notes[i], 32 do
      keys[#keys + 1] = string.sub(notes[i], at, at + 31)
    end
    local held = get_all(receipts, keys)
    list[#list + 1] = notes[i]
    for j = 1, #keys do
      if not held[j] or string.byte(held[j]) ~= length or string.sub(held[j], 2, 1 + length) ~= when then
        keys[j] = ''
      end
    end
    list[#list + 1] = table.concat(keys)
    count = count + #keys
  end
end

-- how many, before
function bring.expired_ids(first)
  local list = {}
  expired(ENDED_AT, ENDED, 8, '-', '(' .. ARGV[first + 1], tonumber(ARGV[first]), list)
  return list
end

-- how many, before; then origin and height below which each is forgotten
function bring.expired_occurrences(first, last)
  local list, limit = {}, tonumber(ARGV[first])
  expired(SEEN_AT, SEEN, 8, '-', '(' .. ARGV[first + 1], limit, list)
  for i = first + 2, last, 2 do
    expired(SEEN_BELOW, SEEN, 10, '[' .. ARGV[i], '(' .. ARGV[i] .. ARGV[i + 1], limit, list)
  end
  return list
end

-- prefixes of route and state
function bring.routes(first, last)
  local seqs = {}
  for _, of in ipairs(lists_of(arguments(first, last))) do
    numbers_of(between(of.key, of.prefix, FIRST8, LAST8, -1), seqs)
  end
  return found_rows(seqs)
end

-- lanes
function bring.lanes(first, last)
  local slots = {}
  for i = first, last do
    local of_lane = between(SLOT, ARGV[i], FIRST8, LAST8, -1)
    for j = 1, #of_lane do
      slots[#slots + 1] = of_lane[j]
    end
  end
  return found(PARCEL, slots)
end

-- lanes
function bring.under_way(first, last)
  local counts = {}
  for i = first, last do
    counts[#counts + 1] = ARGV[i]
    counts[#counts + 1] = tostring(redis.call('ZLEXCOUNT', SLOT, '[' .. ARGV[i] .. FIRST8, '[' .. ARGV[i] .. LAST8))
  end
  return counts
end

-- slots
function bring.parcels(first, last)
  return found(PARCEL, arguments(first, last))
end

-- group keys
function bring.groups(first, last)
  local numbers, groups = get_all(GROUP_KEY, arguments(first, last)), {}
  for i = 1, #numbers do
    if numbers[i] then
      groups[#groups + 1] = numbers[i]
    end
  end
  return found(GROUP, groups)
end

-- pairs of a group and how many
function bring.items(first, last)
  local items = {}
  for i = first, last, 2 do
    local high, low = '[' .. ARGV[i] .. LAST8, '[' .. ARGV[i] .. FIRST8
    numbers_of(redis.call('ZREVRANGEBYLEX', ITEM_OF, high, low, 'LIMIT', 0, ARGV[i + 1]), items)
  end
  return found(ITEM, items)
end

-- pairs of a line and how many that wait
function bring.lines(first, last)
  local seqs = {}
  for i = first, last, 2 do
    numbers_of(between(LINE, ARGV[i] .. '\0', FIRST8, LAST8, ARGV[i + 1]), seqs)
    numbers_of(between(LINE, ARGV[i] .. '\1', FIRST8, LAST8, -1), seqs)
  end
  return found_rows(seqs)
end

function bring.counted()
  return redis.call('HGETALL', COUNTED)
end

function bring.paces()
  return redis.call('HGETALL', PACE)
end

-- how many, after, prefixes of route and state
function bring.page(first, last)
  return found_rows(merged(arguments(first + 2, last), ARGV[first + 1], tonumber(ARGV[first])))
end

-- how many, after, bytes, prefixes of route and state
function bring.ready(first, last)
  local seqs = merged(arguments(first + 3, last), ARGV[first + 1], tonumber(ARGV[first]))
  local list, weight = {}, 0
  for from = 1, #seqs, WEIGH do
    local part = {unpack(seqs, from, math.min(from + WEIGH - 1, #seqs))}
    local rows, responses = rows_of(part), redis.call('HMGET', RESPONSE, unpack(part))
    for i = 1, #part do
      if weight > tonumber(ARGV[first + 2]) then
        return list
      end
      weight = weight + #responses[i]
      list[#list + 1] = part[i]
      list[#list + 1] = rows[i]
      list[#list + 1] = responses[i]
    end
  end
  return list
end

-- A part of the journal: its first position as the id; each entry has eight bytes of the
-- position before it of its subject, four of its length, and itself.
local function part_at(position)
  local parts = redis.call('XREVRANGE', JOURNAL, text(position), '-', 'COUNT', 1)
  if #parts == 0 then
    return nil
  end
  return tonumber(string.match(parts[1][1], '%d+')), parts[1][2][2]
end

-- position, how many
function bring.chain(first)
  local position, list = tonumber(ARGV[first]), {}
  while position > 0 and #list < tonumber(ARGV[first + 1]) do
    local start, part = part_at(position)
    local at = 1
    while start and start < position and at <= #part do
      at = at + 12 + struct.unpack('>I4', string.sub(part, at + 8, at + 11))
      start = start + 1
    end
    if not start or at > #part then
      break
    end
    local high, low, length = struct.unpack('>I4I4I4', string.sub(part, at, at + 11))
    list[#list + 1] = string.sub(part, at + 12, at + 11 + length)
    position = high * 4294967296 + low
  end
  return list
end

-- position, how many: whole parts, from the one with the position on
function bring.entries(first)
  local from, wanted, list, count = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), {}, 0
  local start = part_at(from) or from
  while count < wanted do
    local parts = redis.call('XRANGE', JOURNAL, text(start), '+', 'COUNT', 16)
    if #parts == 0 then
      break
    end
    for i = 1, #parts do
      local part, at = parts[i][2][2], 1
      local position = tonumber(string.match(parts[i][1], '%d+'))
      start = position + 1
      while at <= #part do
        local length = struct.unpack('>I4', string.sub(part, at + 8, at + 11))
        if position >= from and count < wanted then
          list[#list + 1] = string.sub(part, at + 12, at + 11 + length)
          count = count + 1
        end
        at = at + 12 + length
        position = position + 1
      end
    end
  end
  return list
end

-- group key, skip, how many, bytes
function bring.item_payloads(first)
  local group, list, weight = redis.call('HGET', GROUP_KEY, ARGV[first]), {}, 0
  if not group then
    return list
  end
  local low, high = '[' .. group .. FIRST8, '[' .. group .. LAST8
  local items = numbers_of(redis.call('ZRANGEBYLEX', ITEM_OF, low, high, 'LIMIT', ARGV[first + 1], ARGV[first + 2]))
  for i = 1, #items do
    if weight > tonumber(ARGV[first + 3]) then
      break
    end
    local payload = redis.call('HGET', ITEM_BODY, items[i])
    weight = weight + #payload
    list[#list + 1] = items[i]
    list[#list + 1] = payload
  end
  return list
end

-- Route and state, how many, and the row of the oldest.
function bring.counts()
  local counted, list = redis.call('HGETALL', COUNTED), {}
  for i = 1, #counted, 2 do
    if tonumber(counted[i + 1]) > 0 then
      local oldest = merged({counted[i]}, FIRST8, 1)
      list[#list + 1] = counted[i]
      list[#list + 1] = counted[i + 1]
      list[#list + 1] = rows_of(oldest)[1] or ''
    end
  end
  return list
end

-- Whether the process's past is in this store's past.
local function is_lost(version)
  if certain == '' then
    return false
  end
  if tonumber(version) < tonumber(certain) then
    return true
  end
  if tonumber(version) - tonumber(certain) >= LINEAGE_MAX then
    -- Of so long ago only the newest version of each process is known; `me` is its epoch and a digit.
    local newest = redis.call('HGET', LINEAGE, 'by ' .. string.sub(me, 1, -2))
    return newest and tonumber(string.match(newest, '%d+')) < tonumber(certain)
  end
  return redis.call('HGET', LINEAGE, text(tonumber(certain) % LINEAGE_MAX)) ~= certain .. ' ' .. certain_tag
end

local now = server_ms()
if mode == 'tick' or (mode == 'alone' and not is_alone(me, now)) then
  local before = take_turn(me, now)
  if before > 0 then
    return {'wait', now, before}
  end
end
local numbers = redis.call('HMGET', NUMBERS, unpack(NUMBER_FIELDS))
local version = numbers[1] or '0'
local lineage = is_lost(version) and 'lost' or 'kept'
local stands, fixtures = {}, {}
if expected ~= version then
  fixtures = found(FIXTURE, redis.call('ZRANGEBYSCORE', CHANGED, '(' .. fixtures_known, '+inf'))
  for i = 1, #numbers do
    stands[i] = numbers[i] or ''
  end
  if expected ~= '*' then
    return {'moved', now, lineage, stands, fixtures}
  end
end
local answer = {'here', now, lineage, stands, fixtures}
local at = 7
while at <= #ARGV do
  local count = tonumber(ARGV[at + 1])
  answer[#answer + 1] = bring[ARGV[at]](at + 2, at + 1 + count)
  at = at + 2 + count
end
return answer
