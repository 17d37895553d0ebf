-- Of what kind each key is; 'none', if it is not there. Asked once, at the start.
local kinds = {}
for i = 1, #KEYS do
  kinds[i] = redis.call('TYPE', KEYS[i]).ok
end
return kinds
