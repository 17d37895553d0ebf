//! The Postgres store: the same state machine, on loan, for many processes at once.
//!
//! ```text
//!   BEGIN, lock numbers, fixtures ──▶ fetch what the batch needs ──▶ Machine::borrow
//!                                                                        │ tick, apply
//!   answer ◀── COMMIT ◀── one statement for each kind of row ◀── what changed
//! ```
//!
//! No process holds the state. Each batch fetches just the rows that it may touch
//! ([`needs`]), does its operations by the functions that the memory and SQLite stores use,
//! and writes what they changed. Ticks of all processes follow each other, by the lock on the
//! one row of `numbers`: the journal is in the order of commits, and nothing that a tick has
//! fetched can change under it. What a process gains by more processes is not commits but
//! batches: while one tick is under way, the others' calls gather for theirs.
//!
//! Failure modes: a process that dies in a tick has done nothing. One that goes silent in a
//! tick holds all others up until the server ends its transaction, seconds later, or, in the middle of a statement, until
//! whoever waited for it in vain does. A connection that breaks during a commit, or on which nothing is answered, leaves
//! the outcome unknown, and the batch is to be replayed. Time is the server's.

mod announce;
mod archive;
mod condition;
mod copy;
mod fetch;
mod hints;
mod migrate;
mod oldest;
mod read;
mod tls;
mod views;
mod vitals;
mod wire;
mod write;

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OnceCell, Semaphore};
use tokio_postgres::{Config, Row};

use announce::Herald;
pub(super) use archive::contents;
pub(super) use condition::condition;
use fetch::Desk;
use hints::Bells;
use oldest::Oldest;
use tls::{Dial, Tls};
pub(super) use vitals::vitals;
use wire::{ANSWER_MAX, Answers, Call, PgError, Wire, int, param, time, uint};
use write::{Expected, Tick};

use super::disk::{Fixture, HighWater};
use super::loan::told::Patience;
use super::loan::{self, Changes as Rows, Damaged, First, FixtureRows, Known, Numbers, Shelf, Sight, Ticked, decode};
use super::op::{Op, Outcome};
use super::projection::{Announcement, BadView, View, check_views};
use super::query::{Query, Reply};
use super::sent::Sent;
use super::witness::Witness;
use super::{Changes, Hints, NO_EPOCH, Options, Store, StoreError, StoreFuture, Topic, check_batch, without_password};
use crate::clock::Clock;
use crate::words::UnixMs;

/// How many reads run at a time; others wait for a connection.
const READERS_MAX: usize = 4;
/// How many batches are under way: while the server does one, this process works out the next.
const BATCHES_UNDER_WAY: usize = 2;
/// The schema that holds everything, unless the URL names another.
const SCHEMA: &str = "roundtrip";

const LOCK_NUMBERS: &str = "
SELECT epoch, seq, entry, receipt, item, grp, journal_floor, fixtures,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint, tick, needs, mark FROM numbers FOR UPDATE";
const NUMBERS: &str = "
SELECT epoch, seq, entry, receipt, item, grp, journal_floor, fixtures,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint, tick, needs, mark FROM numbers";
const FIXTURES: &str = "SELECT record FROM fixture WHERE version > $1";
/// Later than every epoch before, and the time: a restored backup repeats none. Whoever goes by
/// what it knows of the numbers learns of it.
const NEXT_EPOCH: &str = "
UPDATE numbers SET tick = tick + 1,
    epoch = greatest(epoch + 1, coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
RETURNING epoch";

/// Whoever has this store's lock for so many seconds while the server waits for what it sends. The server itself ends only
/// transactions that wait between two statements; in the middle of one, as in COPY, a process may be silent for good.
const END_STOPPED: &str = "
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid IN (SELECT pid FROM pg_locks WHERE relation = 'numbers'::regclass AND granted)
  AND usename = current_user AND state = 'active' AND wait_event = 'ClientRead'
  AND xact_start < clock_timestamp() - make_interval(secs => $1)";
/// After which part of the time that the server may be silent whoever it waits for is taken to be stopped: less than a batch
/// waits for the lock before it looks.
const STOPPED_AFTER: f64 = 0.6;

/// A store on a Postgres server, which many processes may share.
pub struct PostgresStore {
    server: Server,
    options: Options,
    hints: Arc<Hints>,
    /// Hints to and from other processes, from the first call on.
    bells: OnceLock<Bells>,
    /// This start's epoch; none before the first call reached the server.
    epoch: OnceCell<u64>,
    /// Whether it only answers reads.
    looks: bool,
    /// With connections that carry hints or announcements.
    patience: Patience,
    writer: Mutex<Writer>,
    readers: Semaphore,
    idle_readers: std::sync::Mutex<Vec<Wire>>,
    showing: Showing,
}

/// What is shown under names of the user's choice.
#[derive(Default)]
struct Showing {
    /// The views that there are to be; if it is not said, those that there are.
    views: Option<Vec<View>>,
    announcements: Vec<Announcement>,
    herald: OnceLock<Herald>,
}

/// Where the data is.
struct Server {
    dial: Dial,
    /// As errors name it.
    name: String,
    schema: String,
    /// Whether other processes are heard of by polling alone.
    poll_only: bool,
    /// How long it may answer nothing; none, for what takes as long as it takes.
    answer_max: Option<Duration>,
    /// In place of the server's clock, for tests.
    clock: Option<Arc<dyn Clock>>,
    /// What the server's clock last said, and when that was by this process's.
    heard: std::sync::Mutex<Option<(UnixMs, Instant)>>,
}

/// What ticks of this process share.
#[derive(Default)]
struct Writer {
    wire: Option<Wire>,
    seen: Seen,
    oldest: Oldest,
    tokens: u64,
    /// Counts how often what was seen turned out to be worth nothing.
    turn: u64,
}

impl Writer {
    /// Notes that nothing is known of the server, so that all of it is read anew.
    fn forget(&mut self) {
        self.seen = Seen::default();
        self.turn += 1;
    }
}

/// What a process has seen of what is small, as it was after a tick, or will be after those that
/// are on their way: if one of them fails, those after it do too.
#[derive(Default)]
struct Seen {
    tick: Tick,
    version: i64,
    fixtures: FixtureRows,
    shelf: Shelf,
    /// The numbers as the last tick left them; none, if another process had ticked before it: it
    /// will again.
    last: Option<Numbers>,
}

impl Seen {
    /// What the numbers are now, if nobody else has ticked.
    fn guess(&self, server: &Server) -> Option<Numbers> {
        Some(Numbers { now: server.now()?, ..self.last? })
    }
}

impl Seen {
    /// Keeps in mind what this tick, at these numbers, leaves if it writes something.
    fn note(&mut self, tick: Tick, ticked: &Ticked, changes: &Rows<'_>, numbers: Numbers) {
        if !changes.is_empty() {
            self.tick = tick;
        }
        if let Some(new) = changes.fixtures {
            self.version = int(numbers.fixtures + 1);
            self.fixtures.extend(new.iter().map(|(key, fixture)| (key.clone(), fixture.clone())));
        }
        if let Some(last) = &mut self.last {
            *last = changes.numbers.map_or(numbers, |new| new.after(numbers));
            self.shelf.learn(ticked, changes, &numbers);
        }
    }
}

impl PostgresStore {
    /// A store at `postgres://USER@HOST/DATABASE`. Two parameters are the store's own, beside
    /// those that libpq knows: `schema=NAME` for another schema than `roundtrip`, and
    /// `poll_only=true` to do without LISTEN and NOTIFY, which some poolers do not carry.
    /// `sslmode` is `disable`, which it is if absent, or `verify-full` or `require`, which both
    /// verify the server's certificate and name, by the public authorities or by those in the
    /// PEM file that `sslrootcert` names. The first call connects, and creates or upgrades the
    /// schema; it needs a tokio runtime.
    pub fn new(url: &str, options: Options) -> Result<PostgresStore, StoreError> {
        let bad = || StoreError::BadUrl { url: without_password(url) };
        let (url, own) = take_parameters(url).ok_or_else(bad)?;
        let config: Config = url.parse().map_err(|_| bad())?;
        let name = in_words(&config);
        let dial = Dial::new(config, &own.tls)?;
        let schema = own.schema.unwrap_or_else(|| SCHEMA.to_owned());
        let poll_only = own.poll_only;
        Ok(PostgresStore {
            server: Server {
                dial,
                name,
                schema,
                poll_only,
                answer_max: Some(ANSWER_MAX),
                clock: None,
                heard: Default::default(),
            },
            options,
            hints: Arc::default(),
            bells: OnceLock::new(),
            epoch: OnceCell::new(),
            looks: false,
            patience: Patience::default(),
            writer: Mutex::default(),
            readers: Semaphore::new(READERS_MAX),
            idle_readers: std::sync::Mutex::default(),
            showing: Showing::default(),
        })
    }

    /// The same by another clock than the server's. For tests: processes that share a store
    /// must share a clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> PostgresStore {
        self.server.clock = Some(clock);
        self
    }

    /// The same, taking a connection to be broken when nothing is answered on it for so long, in place of 45 seconds, or
    /// five where it carries hints or announcements; one that listens is asked as often whether it is there, in place of
    /// every ten. For tests, which do not wait.
    #[must_use]
    pub fn with_patience(mut self, silence_max: Duration) -> PostgresStore {
        self.patience = Patience { unasked: silence_max, asked: silence_max };
        self.server.answer_max = Some(silence_max);
        self
    }

    /// The same, for whoever only looks: it takes no epoch, makes and upgrades nothing, and refuses to write. The
    /// schema must be there, and of this version; see [`condition`](super::condition).
    #[must_use]
    pub fn looking(mut self) -> PostgresStore {
        self.looks = true;
        self
    }

    /// The same, with these views and announcements. The start creates the views, replaces those
    /// that are declared otherwise, and drops those that were this store's and are declared no more:
    /// give all processes that share the store the same. A store that was never told of views leaves
    /// them as they are.
    pub fn with_views(mut self, views: Vec<View>, announcements: Vec<Announcement>) -> Result<PostgresStore, BadView> {
        check_views(&views, &announcements)?;
        self.showing = Showing { views: Some(views), announcements, herald: OnceLock::new() };
        Ok(self)
    }

    /// Connects now, so that what is wrong is told before the first call.
    pub async fn start(&self) -> Result<(), StoreError> {
        self.epoch().await.map(drop)
    }

    /// This start's epoch.
    async fn epoch(&self) -> Result<u64, StoreError> {
        self.epoch.get_or_try_init(|| self.begin()).await.copied()
    }

    async fn begin(&self) -> Result<u64, StoreError> {
        let mut wire = self.server.connect().await?;
        if self.looks {
            archive::refuse_half_copied(&mut wire, &self.server.name).await?;
            self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner).push(wire);
            return Ok(NO_EPOCH);
        }
        // A start waits for those of other schemas, and looks for views in all of them: a test must not be impatient with it.
        wire.answer_max = Some(ANSWER_MAX);
        migrate::migrate(&mut wire, &self.server.name, &self.server.schema).await?;
        archive::refuse_half_copied(&mut wire, &self.server.name).await?;
        if let Some(views) = &self.showing.views {
            views::bring(&mut wire, &self.server.name, &self.server.schema, views).await?;
        }
        wire.answer_max = self.server.answer_max;
        let epoch = match self.begin_epoch(&mut wire).await {
            Ok(epoch) => epoch,
            Err(error) => return Err(self.server.told(error).await),
        };
        if !self.showing.announcements.is_empty() {
            self.showing.herald.get_or_init(|| Herald::start(&self.server.dial, self.patience));
        }
        self.writer.lock().await.wire = Some(wire);
        if !self.server.poll_only {
            self.bells
                .get_or_init(|| Bells::hang(&self.server.dial, &self.server.schema, epoch, self.patience, &self.hints));
        }
        Ok(epoch)
    }

    /// Takes an epoch. Leases of all others go on, and none for longer than it was granted
    /// for, whatever became of the clock.
    async fn begin_epoch(&self, wire: &mut Wire) -> Result<u64, PgError> {
        let now = self.server.clock.as_ref().map(|clock| time(clock.now()));
        let rows = wire.query(NEXT_EPOCH, vec![param(now)]).await?;
        let row = rows.first().ok_or_else(|| Damaged::new("numbers", "no row"))?;
        let epoch = uint(row.try_get(0)?);
        let mut seen = Seen::default();
        let numbers = self.look("BEGIN", wire, &mut seen).await?;
        let sight = Sight { epoch, tokens: 0, numbers, fixtures: &seen.fixtures };
        let ticked = loan::shorten_leases(wire, self.options, &sight).await?;
        let changes = ticked.changes()?;
        let mark = seen.tick.next().mark;
        wire.send("", write::writes(&changes, numbers.newest_epoch, mark)?, "COMMIT").await?;
        Ok(epoch)
    }

    /// Begins a tick, so that nobody else's runs until this one ends, and looks at everything
    /// that may have changed since.
    async fn look(&self, begin: &'static str, wire: &mut Wire, seen: &mut Seen) -> Result<Numbers, PgError> {
        let calls = vec![
            Call::new(LOCK_NUMBERS, Vec::new()),
            Call::new(FIXTURES, vec![param(seen.version)]),
            Call::new(fetch::COUNTED, Vec::new()),
            Call::new(fetch::PACES, Vec::new()),
        ];
        let answers = wire.send(begin, calls, "").await?;
        self.server.take_in(&answers, seen)
    }

    async fn tick(&self, batch: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        if self.looks {
            return Err(StoreError::ReadOnly);
        }
        let epoch = self.epoch().await?;
        let done = match self.tick_at_hand(epoch, &batch).await {
            Ok(None) => self.tick_borrowing(epoch, &batch).await,
            Ok(Some(outcomes)) => Ok(outcomes),
            Err(error) => Err(error),
        };
        let error = match done {
            Ok(outcomes) => return Ok(outcomes),
            Err(error) => error,
        };
        tracing::warn!(%error, server = %self.server.name, "a batch was not stored");
        Err(self.server.told(error).await)
    }

    /// Does a batch with what is at hand, if that does and nobody else has ticked: all of it in
    /// the flight that commits. The next batch need not wait for that: it takes it that this one
    /// is written, and its own commit makes sure.
    async fn tick_at_hand(&self, epoch: u64, batch: &[Op]) -> Result<Option<Vec<Outcome>>, PgError> {
        let mut writer = self.writer.lock().await;
        let Writer { wire: place, seen, tokens, turn, .. } = &mut *writer;
        let Some(guess) = seen.guess(&self.server) else { return Ok(None) };
        // If this ends early, the connection is dropped, and with it what it had begun.
        let Some(mut wire) = place.take().filter(|wire| !wire.is_closed()) else { return Ok(None) };
        let sight = Sight { epoch, tokens: *tokens, numbers: guess, fixtures: &seen.fixtures };
        let mut done = seen.shelf.tick(self.options, &sight, batch).await?;
        if done.is_none() && seen.shelf.is_short() {
            if !self.restock(&mut wire, &mut seen.shelf, &sight, seen.tick).await? {
                *place = Some(wire);
                writer.forget();
                return Ok(None);
            }
            done = seen.shelf.tick(self.options, &sight, batch).await?;
        }
        let Some((ticked, assumed)) = done else {
            *place = Some(wire);
            return Ok(None);
        };
        *tokens = ticked.tokens();
        let changes = ticked.changes()?;
        let (tick, next, turn) = (seen.tick, seen.tick.next(), *turn);
        let (wrote, is_sure) = (!changes.is_empty(), assumed.is_empty());
        let expected = Expected { tick, now: self.server.clock.is_none().then_some(guess.now), assumed };
        let calls = match wrote {
            true => write::writes_if(&expected, &changes, guess.newest_epoch, next.mark)?,
            false => vec![Call::new(NUMBERS, Vec::new())],
        };
        let Some(flight) = self.launch(&mut wire, calls, wrote).await? else {
            *place = Some(wire);
            writer.forget();
            return Ok(None);
        };
        *place = Some(wire);
        seen.note(next, &ticked, &changes, guess);
        let news = self.news(&ticked, &changes, &seen.fixtures);
        drop(writer);
        let holds = match flight.land().await {
            Ok(answers) if wrote => self.server.hear(&answers).map(|()| true),
            // What is refused may be for another reason than one that was assumed.
            Ok(answers) => self.server.numbers(&answers).map(|(_, now_at)| now_at == tick && is_sure),
            Err(error) if error.is_otherwise() => Ok(false),
            Err(error) => Err(error),
        };
        if let Ok(true) = holds {
            return Ok(Some(self.tell(ticked, wrote, news)));
        }
        let mut writer = self.writer.lock().await;
        if writer.turn == turn {
            writer.forget();
            // A connection that failed is dropped, and with it what it had begun.
            writer.wire = writer.wire.take().filter(|_| holds.is_ok());
        }
        holds.map(|_otherwise| None)
    }

    /// Fetches more of the queue that ran short at hand, unless somebody else has ticked since this tick.
    async fn restock(
        &self,
        wire: &mut Wire,
        shelf: &mut Shelf,
        sight: &Sight<'_>,
        tick: Tick,
    ) -> Result<bool, PgError> {
        let answers = wire.send("BEGIN", vec![Call::new(LOCK_NUMBERS, Vec::new())], "").await?;
        let holds = self.server.numbers(&answers)?.1 == tick;
        if holds {
            let known = shelf.known.clone();
            let mut desk = Desk { wire, known: &known, oldest: &mut Oldest::default() };
            shelf.restock(&mut desk, sight).await?;
        }
        wire.run("ROLLBACK").await?;
        Ok(holds)
    }

    /// Sends what a tick asks or writes. Of what it writes the first call makes sure that all is as
    /// expected; nothing is under way if it is known not to be. A copy waits for that call: one that fails as it starts spoils the connection.
    async fn launch<'a>(
        &self,
        wire: &mut Wire,
        mut calls: Vec<Call<'a>>,
        writes: bool,
    ) -> Result<Option<Sent<'a, Answers>>, PgError> {
        if !writes {
            return Ok(Some(wire.launch("", calls, "").await?));
        }
        if !calls.iter().any(Call::is_copy) {
            return Ok(Some(wire.launch("BEGIN", calls, "COMMIT").await?));
        }
        let rest = calls.split_off(1);
        match wire.send("BEGIN", calls, "").await {
            Ok(answers) => self.server.hear(&answers)?,
            Err(error) if error.is_otherwise() => return wire.run("ROLLBACK").await.map(|()| None),
            Err(error) => return Err(error),
        }
        Ok(Some(wire.launch("", rest, "COMMIT").await?))
    }

    /// Does a batch with what is fetched for it.
    async fn tick_borrowing(&self, epoch: u64, batch: &[Op]) -> Result<Vec<Outcome>, PgError> {
        let mut writer = self.writer.lock().await;
        // If this ends early, the connection is dropped, and with it what it had begun.
        let mut wire = match writer.wire.take().filter(|wire| !wire.is_closed()) {
            Some(wire) => wire,
            // Whoever answers now may be another server, which lost what the last one wrote.
            None => {
                writer.forget();
                self.server.open().await?
            }
        };
        match self.tick_on(&mut wire, &mut writer, epoch, batch).await {
            Ok(outcomes) => {
                writer.wire = Some(wire);
                Ok(outcomes)
            }
            Err(error) => {
                writer.forget();
                Err(error)
            }
        }
    }

    async fn tick_on(
        &self,
        wire: &mut Wire,
        writer: &mut Writer,
        epoch: u64,
        batch: &[Op],
    ) -> Result<Vec<Outcome>, PgError> {
        let (ticked, numbers) = match writer.seen.guess(&self.server) {
            Some(guess) => self.tick_by_guess(wire, writer, epoch, batch, guess).await?,
            None => self.tick_by_look("BEGIN", wire, writer, epoch, batch).await?,
        };
        writer.tokens = ticked.tokens();
        let changes = ticked.changes()?;
        // What wrote nothing has nothing to be synced.
        let wrote = !changes.is_empty();
        let end = if wrote { "COMMIT" } else { "ROLLBACK" };
        let next = writer.seen.tick.next();
        wire.send("", write::writes(&changes, numbers.newest_epoch, next.mark)?, end).await?;
        writer.seen.note(next, &ticked, &changes, numbers);
        let news = self.news(&ticked, &changes, &writer.seen.fixtures);
        Ok(self.tell(ticked, wrote, news))
    }

    /// Tells those who wait what a tick that is written did.
    fn tell(&self, ticked: Ticked, wrote: bool, news: Vec<(&str, String)>) -> Vec<Outcome> {
        let (outcomes, done) = ticked.finish();
        if let Some(bells) = self.bells.get().filter(|_| wrote) {
            bells.ring(&done.touched);
        }
        self.hints.tell(done);
        if let Some(herald) = self.showing.herald.get() {
            herald.tell(news);
        }
        outcomes
    }

    /// What those are to be told of a tick who listen under names of the user's choice.
    fn news<'a>(&'a self, ticked: &Ticked, changes: &Rows<'_>, fixtures: &FixtureRows) -> Vec<(&'a str, String)> {
        if self.showing.herald.get().is_none() {
            return Vec::new();
        }
        let routes = loan::routes(fixtures, None).collect();
        announce::texts(&self.showing.announcements, &routes, &ticked.steps(changes, &loan::Texts::default()))
    }

    /// Looks at what there is, and then fetches what the batch needs.
    async fn tick_by_look(
        &self,
        begin: &'static str,
        wire: &mut Wire,
        writer: &mut Writer,
        epoch: u64,
        batch: &[Op],
    ) -> Result<(Ticked, Numbers), PgError> {
        let numbers = self.look(begin, wire, &mut writer.seen).await?;
        let Writer { seen, tokens, oldest, .. } = writer;
        let sight = Sight { epoch, tokens: *tokens, numbers, fixtures: &seen.fixtures };
        let mut desk = Desk { wire, known: &seen.shelf.known, oldest };
        Ok((loan::tick(&mut desk, self.options, &sight, batch).await?, numbers))
    }

    /// Fetches what the batch needs if nobody else has ticked, in the flight that shows
    /// whether somebody did.
    async fn tick_by_guess(
        &self,
        wire: &mut Wire,
        writer: &mut Writer,
        epoch: u64,
        batch: &[Op],
        guess: Numbers,
    ) -> Result<(Ticked, Numbers), PgError> {
        let Writer { seen, tokens, oldest, .. } = &mut *writer;
        let sight = Sight { epoch, tokens: *tokens, numbers: guess, fixtures: &seen.fixtures };
        let first = First::of(batch, &sight);
        let lock = vec![Call::new(LOCK_NUMBERS, Vec::new())];
        let mut desk = Desk { wire, known: &seen.shelf.known, oldest };
        let (answers, found) = desk.fly_after("BEGIN", lock, &first.wants).await?;
        let (numbers, tick) = self.server.numbers(&answers)?;
        if seen.tick != tick {
            // Of what was taken to be written, something was not.
            writer.forget();
            return self.tick_by_look("", wire, writer, epoch, batch).await;
        }
        let sight = Sight { numbers, fixtures: &seen.fixtures, ..sight };
        let mut desk = Desk { wire, known: &seen.shelf.known, oldest };
        Ok((loan::tick_after(&mut desk, self.options, &sight, batch, &first, found).await?, numbers))
    }
}

impl Server {
    async fn connect(&self) -> Result<Wire, StoreError> {
        self.open().await.map_err(|error| error.at(&self.name))
    }

    /// What the caller is told of a call that needs the lock. If it waited for that in vain, the next may have it.
    async fn told(&self, error: PgError) -> StoreError {
        if error.is_held_up() {
            self.end_stopped().await;
        }
        error.at(&self.name)
    }

    /// Ends transactions of processes that were stopped while they sent rows, and hold all others up.
    async fn end_stopped(&self) {
        let Some(answer_max) = self.answer_max else { return };
        let ended = async {
            let old = param(answer_max.as_secs_f64() * STOPPED_AFTER);
            let ended = self.open().await?.query(END_STOPPED, vec![old]).await?;
            Ok::<i64, PgError>(ended.first().map_or(Ok(0), |row| row.try_get(0))?)
        };
        match ended.await {
            Ok(0) => {}
            Ok(count) => tracing::warn!(
                count, server = %self.name,
                "a process was stopped while it sent the rows of a batch, and held up all others: its transaction is ended"
            ),
            Err(error) => tracing::warn!(%error, server = %self.name, "who holds all others up is not known"),
        }
    }

    async fn open(&self) -> Result<Wire, PgError> {
        Wire::open(&self.dial, &self.schema, self.answer_max).await
    }

    /// The numbers, the fixtures that changed since these, counts and paces.
    fn take_in(&self, answers: &[Vec<Row>], seen: &mut Seen) -> Result<Numbers, PgError> {
        let (numbers, tick) = self.numbers(answers)?;
        let rows = |at: usize| answers.get(at).map_or(&[][..], Vec::as_slice);
        for row in rows(1) {
            let fixture: Fixture = decode("fixture", row.try_get(0)?)?;
            seen.fixtures.insert(fixture.key(), fixture);
        }
        seen.version = int(numbers.fixtures);
        let counted = fetch::each(rows(2), fetch::counted)?.into_iter().collect();
        let paces = fetch::each(rows(3), fetch::pace)?;
        let known = Known { counted, paces, under_way: Default::default(), had_groups: numbers.high.group > 1 };
        seen.shelf = Shelf::knowing(known);
        seen.last = (seen.tick == tick).then_some(numbers);
        seen.tick = tick;
        Ok(numbers)
    }

    /// The time, given the server's.
    fn time(&self, ms: i64) -> UnixMs {
        let now = UnixMs(uint(ms));
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
        self.clock.as_ref().map_or(now, |clock| clock.now())
    }

    /// The time, by what was last heard of it.
    fn now(&self) -> Option<UnixMs> {
        if let Some(clock) = &self.clock {
            return Some(clock.now());
        }
        let (then, at) = (*self.heard.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(then.plus(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)))
    }

    /// Takes the time that a commit's first statement brought.
    fn hear(&self, answers: &[Vec<Row>]) -> Result<(), PgError> {
        if let Some(row) = answers.first().and_then(|rows| rows.first()) {
            self.time(row.try_get(0)?);
        }
        Ok(())
    }

    /// The numbers, and the last tick that wrote something.
    fn numbers(&self, answers: &[Vec<Row>]) -> Result<(Numbers, Tick), PgError> {
        let row = answers.first().and_then(|rows| rows.first());
        let row = row.ok_or_else(|| Damaged::new("numbers", "no row"))?;
        let (needs, known) = (row.try_get(10)?, migrate::KNOWN);
        if needs > known {
            return Err(PgError::Newer { needs, known });
        }
        let number = |at: usize| row.try_get(at).map(uint);
        let high =
            HighWater { seq: number(1)?, entry: number(2)?, receipt: number(3)?, item: number(4)?, group: number(5)? };
        let now = self.time(row.try_get(8)?);
        let (newest_epoch, journal_floor, fixtures) = (number(0)?, number(6)?, number(7)?);
        let tick = Tick { number: row.try_get(9)?, mark: row.try_get(11)? };
        Ok((Numbers { newest_epoch, high, journal_floor, fixtures, now }, tick))
    }
}

impl Store for PostgresStore {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            check_batch(&batch)?;
            self.tick(batch).await
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(self.answer(query))
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.hints.follow(topic)
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.hints.show(witness);
    }

    /// Leases are synced like all others. What looks for work of its own has to ask the server, and would make
    /// everybody beside it wait for that who has all that is needed at hand.
    fn keeps_apart(&self, op: &Op) -> bool {
        op.is_upkeep()
    }

    fn batches_under_way(&self) -> usize {
        BATCHES_UNDER_WAY
    }
}

/// The servers, as errors name them.
fn in_words(config: &Config) -> String {
    let ports = config.get_ports();
    // One port is that of all.
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| match host {
        tokio_postgres::config::Host::Tcp(name) => format!("{name}:{}", port(at)),
        #[cfg(unix)]
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    });
    format!("postgres at {}", hosts.collect::<Vec<_>>().join(","))
}

/// The parameters that only this store knows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Own {
    schema: Option<String>,
    poll_only: bool,
    tls: Tls,
}

/// The URL without the store's own parameters, and what they say; none, if it asks for a
/// kind of TLS that this store does not do.
fn take_parameters(url: &str) -> Option<(String, Own)> {
    let mut own = Own::default();
    let Some((base, parameters)) = url.split_once('?') else { return Some((url.to_owned(), own)) };
    let (mut rest, mut tls, mut roots) = (Vec::new(), false, None);
    for parameter in parameters.split('&') {
        match parameter.split_once('=') {
            Some(("schema", name)) if !name.is_empty() => own.schema = Some(name.to_owned()),
            Some(("poll_only", value @ ("true" | "false"))) => own.poll_only = value == "true",
            Some(("sslmode", mode)) => {
                tls = match mode {
                    "disable" => false,
                    "require" | "verify-full" => true,
                    _ => return None,
                }
            }
            Some(("sslrootcert", path)) if !path.is_empty() => roots = Some(path.replace("%2F", "/")),
            _ => rest.push(parameter),
        }
    }
    if tls {
        own.tls = Tls::Verified { roots };
    }
    let (base, rest) = (base.to_owned(), rest.join("&"));
    Some((if rest.is_empty() { base } else { format!("{base}?{rest}") }, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_parameters_are_the_stores_own() {
        let check = |url: &str, rest: &str, schema: Option<&str>, poll_only| {
            let own = Own { schema: schema.map(str::to_owned), poll_only, tls: Tls::None };
            assert_eq!(take_parameters(url), Some((rest.to_owned(), own)));
        };
        check("postgres://h/d", "postgres://h/d", None, false);
        check("postgres://h/d?schema=a", "postgres://h/d", Some("a"), false);
        check("postgres://h/d?x=1&schema=a&y=2&poll_only=true", "postgres://h/d?x=1&y=2", Some("a"), true);
        // What makes no sense is left for the server's client to refuse.
        check("postgres://h/d?schema=&poll_only=yes", "postgres://h/d?schema=&poll_only=yes", None, false);
    }

    #[test]
    fn servers_are_named_by_their_ports_and_by_nothing_secret() {
        let named = |url: &str| in_words(&url.parse().unwrap_or_default());
        assert_eq!(named("postgres://me:secret@h/d"), "postgres at h:5432");
        assert_eq!(named("postgres://a:1,b:2/d?password=secret"), "postgres at a:1,b:2");
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_named_with_the_reason() {
        let vitals = vitals("postgres://me:secret@127.0.0.1:1/d").await;
        let Err(error @ StoreError::Unreachable { server, reason }) = &vitals else { panic!("{vitals:?}") };
        assert_eq!(server, "postgres at 127.0.0.1:1");
        assert!(reason.contains("refused") && error.is_retryable(), "{error}");
    }

    #[test]
    fn tls_is_verified_or_not_used() {
        let tls = |url: &str| take_parameters(url).map(|(_, own)| own.tls);
        let verified = |roots: Option<&str>| Some(Tls::Verified { roots: roots.map(str::to_owned) });
        assert_eq!(tls("postgres://h/d"), Some(Tls::None));
        assert_eq!(tls("postgres://h/d?sslmode=disable&sslrootcert=a"), Some(Tls::None));
        assert_eq!(tls("postgres://h/d?sslmode=require"), verified(None));
        assert_eq!(tls("postgres://h/d?sslrootcert=%2Fa%2Fb.pem&sslmode=verify-full"), verified(Some("/a/b.pem")));
        assert_eq!(tls("postgres://h/d?sslmode=prefer"), None, "encrypted perhaps is not encrypted");
    }
}
