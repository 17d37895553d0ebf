-- What the state machine keeps, one table for each kind of row. A record is the machine's
-- own, in postcard; a column beside it is there because a statement selects by it.
--
-- Every tick locks the one row of `numbers` first, so ticks of all processes follow each
-- other: numbers have no gaps, and the journal is in the order of commits. `tick` counts
-- those that wrote something, and `mark` is the last one's own: a process that finds both as it left them, or
-- as a tick of its own that is on its way will, knows that nobody else did. `needs` is the oldest version
-- whose processes may work here: one that is older stops at its next tick.

CREATE TABLE numbers (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    tick          bigint NOT NULL,
    epoch         bigint NOT NULL,
    seq           bigint NOT NULL,
    entry         bigint NOT NULL,
    receipt       bigint NOT NULL,
    item          bigint NOT NULL,
    grp           bigint NOT NULL,
    journal_floor bigint NOT NULL,
    fixtures      bigint NOT NULL,
    needs         integer NOT NULL DEFAULT 1,
    mark          bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO numbers VALUES (true, 0, 0, 1, 1, 1, 1, 1, 1, 0);

-- Routes, origins, lanes, cursors, seats. `version` is the tick's, so that a process reads
-- only what changed since it last looked. `no` is a route's number, by which views find it.
CREATE TABLE fixture (
    kind    smallint NOT NULL CHECK (kind BETWEEN 0 AND 7),
    name    text NOT NULL,
    version bigint NOT NULL,
    record  bytea NOT NULL,
    no      integer CHECK ((no IS NOT NULL) = (kind = 0)),
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX fixture_version ON fixture (version);

-- Live requests with what they ask. States: 0 held, 1 queued, 2 leased, 3 waiting, 4 ready,
-- 5 assigned, 6 included, 7 confirmed, 8 dead. Moments are positive for times, negative for
-- heights. `occurrence` is the first that shows the request; others are in `shown`.
--
-- Most requests are queued, leased and gone, so a lease does not touch this row, with its
-- payload and its indexes by random keys: it is a narrow row of `held`, which counts in place
-- of what is written here. Here, what is leased is still queued.
CREATE TABLE live (
    seq         bigint PRIMARY KEY,
    id          bytea NOT NULL CHECK (length(id) = 32),
    occurrence  bytea CHECK (length(occurrence) = 32),
    route       integer NOT NULL,
    state       smallint NOT NULL CHECK (state BETWEEN 0 AND 8 AND state <> 2),
    behind      boolean NOT NULL,
    encoding    smallint NOT NULL,
    key         text,
    turn        bigint,
    due         bigint,
    deadline    bigint,
    forget_at   bigint,
    admitted_at bigint NOT NULL,
    record      bytea NOT NULL,
    payload     bytea NOT NULL,
    trace       bytea,
    CHECK (NOT behind OR state = 0),
    CHECK (turn IS NULL OR state = 1),
    CHECK (due IS NULL OR state = 0),
    CHECK ((forget_at IS NOT NULL) = (state = 8)),
    CHECK (deadline IS NULL OR state < 5)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX live_id ON live (id);
CREATE INDEX live_occurrence ON live (occurrence) WHERE occurrence IS NOT NULL;
CREATE INDEX live_state ON live (route, state, seq);
CREATE INDEX live_line ON live (route, key, seq) WHERE key IS NOT NULL AND state <= 1 AND NOT behind;
CREATE INDEX live_due ON live (due, seq) WHERE due IS NOT NULL;
CREATE INDEX live_deadline ON live (deadline, seq) WHERE deadline IS NOT NULL;
CREATE INDEX live_forget ON live (forget_at, seq) WHERE forget_at IS NOT NULL;

-- Which may be handed out, and in which order.
CREATE TABLE queued (
    route integer NOT NULL,
    turn  bigint NOT NULL,
    seq   bigint NOT NULL,
    PRIMARY KEY (route, turn, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- What workers hold: as many rows as there is work under way.
CREATE TABLE held (
    seq         bigint PRIMARY KEY,
    route       integer NOT NULL,
    key         text,
    claim       bigint NOT NULL,
    lease_until bigint NOT NULL,
    record      bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX held_claim ON held (claim, lease_until);
CREATE INDEX held_key ON held (route, key) WHERE key IS NOT NULL;

-- Live requests as they are.
CREATE VIEW request AS
SELECT l.seq, l.id, l.occurrence, l.route, l.key, l.behind, l.admitted_at, l.deadline, l.due, l.forget_at,
    l.encoding, l.payload, l.trace, l.state AS queued_state, h.seq IS NOT NULL AS leased,
    CASE WHEN h.seq IS NULL THEN l.state ELSE 2::smallint END AS state,
    CASE WHEN h.seq IS NULL THEN l.turn END AS turn,
    coalesce(h.record, l.record) AS record
FROM live l LEFT JOIN held h USING (seq);

-- What was answered.
CREATE TABLE response (
    seq      bigint PRIMARY KEY,
    encoding smallint NOT NULL,
    payload  bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Which live request shows an occurrence, beside the first that shows it.
CREATE TABLE shown (
    occurrence bytea PRIMARY KEY CHECK (length(occurrence) = 32),
    seq        bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Receipts: how an id ended, and which occurrences were seen. One with an origin is
-- forgotten when the origin's floor passes its height; any other by time.
CREATE TABLE ended (
    id     bytea PRIMARY KEY CHECK (length(id) = 32),
    until  bigint NOT NULL,
    record bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX ended_until ON ended (until);
CREATE TABLE seen (
    occurrence bytea PRIMARY KEY CHECK (length(occurrence) = 32),
    until      bigint,
    origin     integer,
    height     bigint,
    record     bytea NOT NULL,
    CHECK ((until IS NULL) = (origin IS NOT NULL)),
    CHECK ((height IS NULL) = (origin IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX seen_until ON seen (until) WHERE until IS NOT NULL;
CREATE INDEX seen_height ON seen (origin, height) WHERE origin IS NOT NULL;

-- What lanes carry; the ids of its deliveries one after the other.
CREATE TABLE parcel (
    lane       integer NOT NULL,
    nonce      bigint NOT NULL,
    deliveries bytea NOT NULL,
    record     bytea NOT NULL,
    PRIMARY KEY (lane, nonce)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE grp (
    no        bigint PRIMARY KEY,
    key       text NOT NULL UNIQUE,
    request   bytea,
    forget_at bigint,
    timer     bigint,
    record    bytea NOT NULL
);
CREATE INDEX grp_request ON grp (request) WHERE request IS NOT NULL;
CREATE INDEX grp_forget ON grp (forget_at, no) WHERE forget_at IS NOT NULL;
CREATE INDEX grp_timer ON grp (timer, no) WHERE timer IS NOT NULL;
CREATE TABLE item (
    no       bigint PRIMARY KEY,
    grp      bigint NOT NULL,
    id       bytea NOT NULL CHECK (length(id) = 32),
    late     boolean NOT NULL,
    encoding smallint NOT NULL,
    payload  bytea NOT NULL
);
CREATE INDEX item_grp ON item (grp, no);

-- The journal, some entries to a row: those from `first` to `last`, and of each the position
-- of the one before it about the same request, eight bytes each.
CREATE TABLE journal (
    first    bigint PRIMARY KEY,
    last     bigint NOT NULL CHECK (last >= first),
    previous bytea NOT NULL CHECK (length(previous) = 8 * (last - first + 1)),
    entries  bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE journal ALTER COLUMN previous SET STORAGE MAIN, ALTER COLUMN entries SET STORAGE MAIN;

-- How many live requests a route has in each state; every state has a row.
CREATE TABLE counted (
    route    integer NOT NULL,
    state    smallint NOT NULL CHECK (state BETWEEN 0 AND 8),
    requests bigint NOT NULL CHECK (requests >= 0),
    PRIMARY KEY (route, state)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What a route with a rate handed out lately. A start of any process voids it: the epoch
-- tells, and the whole allowance then counts as used.
CREATE TABLE pace (
    route  integer PRIMARY KEY,
    epoch  bigint NOT NULL,
    record bytea NOT NULL
) WITH (fillfactor = 10);
