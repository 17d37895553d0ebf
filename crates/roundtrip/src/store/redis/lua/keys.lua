-- The keys of a store, by the names that the other parts use. All have one hash tag, so a
-- store is in one slot; every call but a commit's declares all of them, in this order.
local NUMBERS, TURN, LINEAGE, FIXTURE, CHANGED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local FRESH, LIVE, BODY, RESPONSE, ID, BEHIND, SHOWN = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local STATE, QUEUE, LINE, DUE, DEADLINE = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local LEASE, CLAIM, DEAD = KEYS[18], KEYS[19], KEYS[20]
local ENDED, SEEN, ENDED_AT, SEEN_AT, SEEN_BELOW = KEYS[21], KEYS[22], KEYS[23], KEYS[24], KEYS[25]
local PARCEL, SLOT = KEYS[26], KEYS[27]
local GROUP, GROUP_KEY, GROUP_OF, GROUP_TIMER, GROUP_FORGET = KEYS[28], KEYS[29], KEYS[30], KEYS[31], KEYS[32]
local ITEM, ITEM_BODY, ITEM_OF = KEYS[33], KEYS[34], KEYS[35]
local JOURNAL, COUNTED, PACE, COPYING = KEYS[36], KEYS[37], KEYS[38], KEYS[39]
