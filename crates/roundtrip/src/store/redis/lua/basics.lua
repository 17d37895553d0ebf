-- How many arguments one command gets; Lua's stack has room for fewer than 8000.
local ARGUMENTS_MAX = 4000
-- How many versions back a process can tell whether its past is still there.
local LINEAGE_MAX = 1024

-- The server's time in milliseconds.
local function server_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A whole number as text; Lua would write large ones with an exponent.
local function text(number)
  return string.format('%.0f', number)
end
