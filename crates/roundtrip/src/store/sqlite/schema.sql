-- The durable form of the state machine. Numbers are given out in memory and only
-- grow, so every insert goes to the right edge of its table and deletes come from the
-- left; no table that changes with every request has an index on a hash.

CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- Routes, origins, lanes, cursors and seats: few and small, one row each, whole.
CREATE TABLE fixture (
    kind INTEGER NOT NULL,
    name TEXT NOT NULL,
    row  BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- A request as it was admitted. The body comes last: opening a store skips it.
CREATE TABLE request (
    seq      INTEGER PRIMARY KEY,
    id       BLOB NOT NULL CHECK (length(id) = 32),
    route    INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    head     BLOB NOT NULL,
    encoding INTEGER NOT NULL,
    trace    TEXT,
    body     BLOB NOT NULL
) STRICT;

-- What is to be known of a live request beyond its other rows: leases, failures,
-- changes of standing, dead letters.
CREATE TABLE mark (seq INTEGER PRIMARY KEY, row BLOB NOT NULL) STRICT;

-- A recorded response.
CREATE TABLE answer (
    seq      INTEGER PRIMARY KEY,
    head     BLOB NOT NULL,
    encoding INTEGER NOT NULL,
    response BLOB NOT NULL
) STRICT;

-- What each occupied slot of a lane carries, with its signed attempts; numbered in
-- the order of assignment, so that all lanes write to one edge.
CREATE TABLE parcel (
    no    INTEGER PRIMARY KEY,
    lane  INTEGER NOT NULL,
    nonce INTEGER NOT NULL,
    row   BLOB NOT NULL
) STRICT;

CREATE TABLE groups (no INTEGER PRIMARY KEY, row BLOB NOT NULL) STRICT;

CREATE TABLE item (
    no       INTEGER PRIMARY KEY,
    groups   INTEGER NOT NULL,
    id       BLOB NOT NULL CHECK (length(id) = 32),
    late     INTEGER NOT NULL CHECK (late IN (0, 1)),
    encoding INTEGER NOT NULL,
    payload  BLOB NOT NULL
) STRICT;

-- The newest receipts; older ones are in the runs.
CREATE TABLE receipt (no INTEGER PRIMARY KEY, row BLOB NOT NULL) STRICT;

-- The changes of each commit, under the position of the first.
CREATE TABLE journal (position INTEGER PRIMARY KEY, entries BLOB NOT NULL) STRICT;
