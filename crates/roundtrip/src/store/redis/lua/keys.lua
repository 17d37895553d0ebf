-- The keys of a store, by the names that the other parts use. All have one hash tag, so a
-- store is in one slot; every call but a commit's declares all of them, in this order.
local NUMBERS, TURN, LINEAGE, FIXTURE, CHANGED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LIVE, BODY, RESPONSE, ID, BEHIND, SHOWN = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local STATE, QUEUE, LINE, DUE, DEADLINE = KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local LEASE, CLAIM, DEAD = KEYS[17], KEYS[18], KEYS[19]
local ENDED, SEEN, ENDED_AT, SEEN_AT, SEEN_BELOW = KEYS[20], KEYS[21], KEYS[22], KEYS[23], KEYS[24]
local PARCEL, SLOT = KEYS[25], KEYS[26]
local GROUP, GROUP_KEY, GROUP_OF, GROUP_TIMER, GROUP_FORGET = KEYS[27], KEYS[28], KEYS[29], KEYS[30], KEYS[31]
local ITEM, ITEM_BODY, ITEM_OF = KEYS[32], KEYS[33], KEYS[34]
local JOURNAL, COUNTED, PACE, COPYING = KEYS[35], KEYS[36], KEYS[37], KEYS[38]
