-- Gives back a turn that brought nothing to write.
--
-- ARGV: process. A commit gives the turn back by itself.
if redis.call('HGET', TURN, 'holder') == ARGV[1] then
  redis.set_repl(redis.REPL_NONE)
  redis.call('HDEL', TURN, 'holder', 'until')
end
return 1
