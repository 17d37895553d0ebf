-- The keys that every commit looks at, by the names that the other parts use; those that it writes to besides come
-- after them. A commit declares no others: a server takes as long for each as for a field that is written.
local NUMBERS, TURN, LINEAGE, ID, ENDED, SHOWN, SEEN = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]

