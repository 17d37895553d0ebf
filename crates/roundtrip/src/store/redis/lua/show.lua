-- Writes what a commit shows under keys of the user's naming. A key that is something else
-- already is left alone. Nothing in here can fail the commit that it is part of: what does not
-- work, or is not allowed, is left out and counted. So keys are arguments: who may not use one
-- that is declared may not call a script at all.
--
-- Arguments: of each write what its key must be, the key, the command, how many arguments
-- that has, and those.
-- Answer: how many writes were left out, and of the first its key and what was said about it.
local at, left_out, of, why = 1, 0, '', ''
-- What is wrong with a key, if something is; each is looked at once.
local wrong = {}
while at <= #ARGV do
  local kind, key, command, count = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local said = wrong[kind .. key]
  if said == nil then
    local found = redis.pcall('TYPE', key)
    said = found.err or (found.ok ~= 'none' and found.ok ~= kind and 'it is a ' .. found.ok .. ', not a ' .. kind)
    wrong[kind .. key] = said or false
  end
  if not said then
    local done = redis.pcall(command, key, unpack(ARGV, at + 4, at + 3 + count))
    said = type(done) == 'table' and done.err
  end
  if said then
    left_out = left_out + 1
    if left_out == 1 then
      of, why = key, said
    end
  end
  at = at + 4 + count
end
return {left_out, of, why}
