-- Whose turn it is to tick. Only for speed: what keeps ticks apart is that a commit fails if
-- another came after its fetch. So the marks are neither logged nor replicated, and whoever dies or stops
-- with the turn loses it soon.
--
-- TURN: holder, until; waiting = 'process:last asked;...' in the order of their coming.

-- How long a turn lasts if nobody gives it back.
local TURN_MS = 200
-- Whoever waits asks again sooner than this, or is thought to be gone.
local ASK_MS = 30

-- Those who still wait, in order, without `me`.
local function waiting_besides(me, marks, now)
  local line, place = {}, nil
  for process, asked in string.gmatch(marks or '', '(%d+):(%d+);') do
    if process == me then
      place = #line + 1
    elseif now - asked <= ASK_MS then
      line[#line + 1] = process .. ':' .. asked .. ';'
    end
  end
  return line, place
end

-- Takes the turn for `me`: 0, or how many are to go before.
local function take_turn(me, now)
  redis.set_repl(redis.REPL_NONE)
  local marks = redis.call('HMGET', TURN, 'holder', 'until', 'waiting')
  local held = marks[1] and tonumber(marks[2]) > now
  local line, place = waiting_besides(me, marks[3], now)
  place = place or #line + 1
  if not (held and marks[1] == me) and (held or place > 1) then
    table.insert(line, place, me .. ':' .. text(now) .. ';')
    redis.call('HSET', TURN, 'waiting', table.concat(line))
    return place
  end
  redis.call('HSET', TURN, 'holder', me, 'until', text(now + TURN_MS), 'waiting', table.concat(line))
  return 0
end

-- Whether nobody but `me` has or waits for the turn: whoever ticks alone need not take it.
local function is_alone(me, now)
  local marks = redis.call('HMGET', TURN, 'holder', 'until', 'waiting')
  local held = marks[1] and marks[1] ~= me and tonumber(marks[2]) > now
  return not held and #waiting_besides(me, marks[3], now) == 0
end
