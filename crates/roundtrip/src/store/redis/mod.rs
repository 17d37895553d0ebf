//! The Redis store: the same state machine, on loan, for many processes at once.
//!
//! ```text
//!   fetch.lua: the turn, what the batch needs, at one version ──▶ Machine::borrow
//!                                                                     │ tick, apply
//!   answer ◀── MULTI, EXEC: is it still that version? then all of it ◀── what changed
//! ```
//!
//! Version for safety, turn for speed. A lock that a dead process cannot hold does not exist
//! here; so the version is watched from the fetch on, and the commit does nothing if another
//! commit came first: then the tick starts again. A process that was stopped and wakes up
//! cannot write. So that nobody works in vain, whoever finds others at work takes a turn, and
//! gives it back with the commit; a turn that is not given back lapses after a moment.
//!
//! Failure modes: a process that dies in a tick has done nothing. A connection that breaks
//! during a commit leaves the outcome unknown, and the batch is to be replayed. A failover
//! that lost acknowledged writes is noticed by every process that knows of one of them, at its
//! next tick: it says so, and stops all lanes. Time is the server's.

mod ahead;
mod archive;
mod ask;
mod audit;
mod bytes;
mod check;
mod condition;
mod flight;
mod hand;
mod hints;
mod keys;
mod link;
mod place;
mod project;
mod put;
mod server;
mod sorted;
mod vitals;

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{Mutex, OnceCell, Semaphore};

use flight::{Certain, FirstWants, Flight, Heard, Known, Mode};
use hints::Ear;
use keys::{Script, channel_of, keys_of};
use link::{Link, LinkError};
use place::Place;
pub use project::ProjectionHealth;
use project::Showing;
use put::{Brought, FAR_BACK};
use server::{Author, Server, new_run, new_tag};

pub(super) use archive::contents;
pub(super) use condition::condition;
pub(super) use vitals::vitals;

use super::loan::told::Patience;
use super::loan::{self, Changes as Rows, Damaged, Numbers, Shelf, Sight, Ticked, Want};
use super::machine::next_epoch;
use super::op::{Op, Outcome};
use super::projection::{self, BadProjection, Projection};
use super::query::{Query, Reply};
use super::witness::Witness;
use super::{Changes, Hints, NO_EPOCH, Options, Store, StoreError, StoreFuture, Topic, check_batch};
use crate::clock::Clock;

/// The layout of keys and values that this version writes.
const FORMAT: u32 = 3;
/// The oldest format that this version reads: before it, requests were not kept as they came.
const OLDEST: u32 = 3;
/// The oldest format whose programs may go on working on what this version writes: those of a format that only
/// adds what they neither read nor write go on, so that processes are upgraded one after the other.
const NEEDS: u32 = 3;
/// How many reads run at a time; others wait.
const READERS_MAX: usize = 16;
/// How often a read is disturbed by commits before it takes a turn of its own.
const DISTURBED_MAX: usize = 4;
/// How often a tick or a read is begun anew before its caller is told to try again.
const TRIES_MAX: usize = 64;
/// How many ticks take a turn at once after one that another process came before.
const CROWDED: u32 = 64;
/// How old the server's time may be that a tick goes by.
const HEARD_MAX: Duration = Duration::from_secs(1);
/// How long a tick may take, from its time on.
const LATE_MAX: Duration = Duration::from_secs(5);
/// How many versions back a process can tell whether its past is still there.
const LINEAGE_MAX: u64 = 1024;

/// A store on a Redis server or cluster, which many processes may share.
pub struct RedisStore {
    server: Server,
    options: Options,
    hints: Arc<Hints>,
    /// Hints from other processes, from the first call on.
    ear: OnceLock<Ear>,
    /// This start's epoch; none before the first call reached the server.
    epoch: OnceCell<u64>,
    /// Whether it only answers reads.
    looks: bool,
    /// With connections that listen.
    patience: Patience,
    writer: Mutex<Writer>,
    /// The last commit of this process that is known to be written, and when it was.
    confirmed: std::sync::Mutex<Option<(Certain, Heard)>>,
    readers: Semaphore,
    /// What reads last heard.
    read: std::sync::Mutex<Option<Known>>,
    /// What is shown under keys of the user's naming.
    showing: Showing,
}

/// What ticks of this process share.
///
/// Where the store stands may be where it will once all is written that is on its way: if one of
/// those commits fails, those after it do too.
#[derive(Default)]
struct Writer {
    known: Option<Known>,
    /// The last commit that was sent.
    sent: Option<Certain>,
    /// Counts how often what was known turned out to be worth nothing.
    turn: u64,
    /// Which store it was.
    run: String,
    /// Whether acknowledged writes were found to be lost, and lanes are still to be stopped.
    rolled_back: bool,
    tokens: u64,
    /// How many more ticks take a turn at once, since others tick too.
    crowded: u32,
    /// Rows at hand, as they are at this version.
    shelf: Shelf,
    shelf_version: u64,
}

/// A tick that is done, but for being written.
struct Done<'a> {
    process: &'a str,
    epoch: u64,
    ticked: &'a Ticked,
    changes: Rows<'a>,
    brought: Brought,
    /// What is shown of it under keys of the user's naming.
    shown: Vec<Cmd>,
    /// Whether it is written although it changed no row.
    must: bool,
    /// Commands of a start.
    begin: Vec<Cmd>,
    /// Whether there is a turn to give back.
    has_turn: bool,
}

/// A tick that is written.
struct Written<'a> {
    ticked: &'a Ticked,
    changes: &'a Rows<'a>,
    /// By which it is told from every other commit.
    tag: u64,
    /// Whether nobody else seems to tick.
    alone: bool,
}

/// How many batches are under way: while the server does one, this process works out the next.
const BATCHES_UNDER_WAY: usize = 2;

impl RedisStore {
    /// What URLs of such stores begin with.
    pub(super) const SCHEMES: [&'static str; 5] = ["redis", "rediss", "redis-cluster", "rediss-cluster", "redis+unix"];

    /// A store at `redis://HOST`, `rediss://HOST` (TLS) or `redis-cluster://HOST:PORT,…`. Three
    /// parameters are the store's own: `name=NAME`, since a server may keep many stores,
    /// `poll_only=true` to do without hints, and `sslrootcert=PATH` with the authorities that vouch for
    /// the server, if those of the system do not. The first call connects and checks that the
    /// server keeps what it acknowledges; it needs a tokio runtime.
    pub fn new(url: &str, options: Options) -> Result<RedisStore, StoreError> {
        let place = Place::of(url)?;
        let keys: Vec<String> = keys_of(&place.name).into_iter().map(|(key, _)| key).collect();
        let server = Server {
            name: place.in_words(),
            channel: channel_of(&place.name),
            fetch: Script::fetch(),
            commit: Script::commit(),
            give: Script::give(),
            writing: Link::new(place.clone(), keys.clone()),
            reading: Link::new(place.clone(), keys),
            far_back: FAR_BACK,
            clock: None,
            place,
        };
        Ok(RedisStore {
            server,
            options,
            hints: Arc::default(),
            ear: OnceLock::new(),
            epoch: OnceCell::new(),
            looks: false,
            patience: Patience::default(),
            writer: Mutex::default(),
            confirmed: std::sync::Mutex::default(),
            readers: Semaphore::new(READERS_MAX),
            read: std::sync::Mutex::default(),
            showing: Showing::default(),
        })
    }

    /// The same by another clock than the server's. For tests: processes that share a store
    /// must share a clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> RedisStore {
        self.server.clock = Some(clock);
        self
    }

    /// The same, with requests kept as they came behind so many that are queued, in place of 4,096, and no more at hand
    /// than those, or a few. For tests, whose queues are short.
    #[must_use]
    pub fn with_far_back(mut self, queued: u64) -> RedisStore {
        self.server.far_back = queued;
        self.writer.get_mut().shelf = Shelf::of_depth(usize::try_from(queued).unwrap_or(usize::MAX));
        self
    }

    /// The same, with so long for the server to answer, in place of ten seconds; a connection that listens is asked as often
    /// whether it is there. For tests, which do not wait.
    #[must_use]
    pub fn with_patience(mut self, answer_max: Duration) -> RedisStore {
        self.patience = Patience { unasked: answer_max, asked: answer_max };
        self.server.writing.answer_max = answer_max;
        self.server.reading.answer_max = answer_max;
        self
    }

    /// The same, for whoever only looks: it takes no epoch, makes nothing, refuses to write, and does not ask what the
    /// server is like. The store must be there; see [`condition`](super::condition).
    #[must_use]
    pub fn looking(mut self) -> RedisStore {
        self.looks = true;
        self
    }

    /// The same, and shows what these projections say, in the commits that change it. Whoever
    /// shares the store must be given the same projections: a commit shows what its own process
    /// was told to.
    pub fn with_projections(mut self, projections: Vec<Projection>) -> Result<RedisStore, BadProjection> {
        if self.server.place.is_cluster && !projections.is_empty() {
            return Err(BadProjection::OnCluster);
        }
        projection::check_each(&projections)?;
        self.showing = Showing::new(projections);
        Ok(self)
    }

    /// Whether everything that is to be shown is.
    pub fn projection_health(&self) -> ProjectionHealth {
        self.showing.health()
    }

    /// Shows all live requests again, as if they had just come: after projections were
    /// changed, after keys were lost or freed, or in a store that was copied. Answers how many
    /// requests there were. Others may go on meanwhile. Lists and counts tell of what happens, so
    /// they are not written; what no live request has a part in stays as it is.
    pub async fn project_again(&self) -> Result<u64, StoreError> {
        let epoch = self.epoch().await?;
        let (mut after, mut shown) = (None, 0);
        loop {
            let page = self.project_page(epoch, after).await?;
            shown += page.requests;
            match page.last {
                Some(last) => after = Some(last),
                None => return Ok(shown),
            }
        }
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
        let mut writer = self.writer.lock().await;
        self.server.refuse_half_copied().await?;
        if self.looks {
            return Ok(NO_EPOCH);
        }
        self.server.check(!self.showing.is_empty()).await?;
        for _ in 0..TRIES_MAX {
            match self.begin_epoch(&mut writer).await {
                Ok(epoch) => {
                    if !self.server.place.poll_only {
                        let (place, channel) = (self.server.place.clone(), self.server.channel.clone());
                        self.ear.get_or_init(|| Ear::open(place, channel, epoch, self.patience, &self.hints));
                    }
                    return Ok(epoch);
                }
                Err(LinkError::Moved) => {}
                Err(error) => {
                    tracing::warn!(%error, server = %self.server.name, "the store cannot be opened");
                    return Err(error.at(&self.server.name));
                }
            }
        }
        Err(StoreError::Unknown)
    }

    /// Takes an epoch. Leases of all others go on, and none for longer than it was granted
    /// for, whatever became of the clock.
    async fn begin_epoch(&self, writer: &mut Writer) -> Result<u64, LinkError> {
        let mut flight = self.server.flight("0", Mode::Turn);
        let known = flight.look(None).await?;
        let now = self.server.now(&known);
        let epoch = next_epoch(known.numbers.newest_epoch, now);
        let former = self.server.former_authors(now).await?;
        let numbers = Numbers { newest_epoch: epoch, now, ..known.numbers };
        let sight = Sight { epoch, tokens: 0, numbers, fixtures: &known.fixtures };
        let ticked = loan::shorten_leases(&mut flight, self.options, &sight).await?;
        let brought = std::mem::take(&mut flight.brought);
        let known = Known { numbers, ..known };
        let done = Done {
            process: "0",
            epoch,
            ticked: &ticked,
            changes: ticked.changes()?,
            brought,
            shown: Vec::new(),
            must: true,
            begin: self.server.rehearsal().into_iter().chain(former).collect(),
            has_turn: true,
        };
        self.write(writer, known, done).await?;
        Ok(epoch)
    }

    async fn tick(&self, batch: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        if self.looks {
            return Err(StoreError::ReadOnly);
        }
        let epoch = self.epoch().await?;
        let process = format!("{epoch}0");
        let done = match self.tick_at_hand(&process, epoch, &batch).await {
            Ok(None) => self.tick_borrowing(&process, epoch, &batch).await,
            Ok(Some(outcomes)) => Ok(outcomes),
            Err(error) => Err(error),
        };
        done.map_err(|error| {
            tracing::warn!(%error, server = %self.server.name, "a batch was not stored");
            error.at(&self.server.name)
        })
    }

    async fn tick_borrowing(&self, process: &str, epoch: u64, batch: &[Op]) -> Result<Vec<Outcome>, LinkError> {
        let mut writer = self.writer.lock().await;
        for _ in 0..TRIES_MAX {
            let error = match self.try_tick(&mut writer, process, epoch, batch).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(error) => error,
            };
            writer.forget();
            match error {
                LinkError::Moved => writer.crowded = CROWDED,
                LinkError::RolledBack => self.notice_rollback(&mut writer),
                error => return Err(error),
            }
        }
        Err(LinkError::Crowded)
    }

    /// Where the store stands, by what was heard of it lately or by asking.
    async fn stand(&self, writer: &mut Writer, flight: &mut Flight<'_>, epoch: u64) -> Result<Known, LinkError> {
        let confirmed = *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        flight.certain = confirmed.map(|(certain, _)| certain);
        let mut known = writer.known.take();
        if let (Some(known), Some((_, heard))) = (&mut known, confirmed) {
            known.heard = known.heard.max(heard);
        }
        let known = match known.filter(|known| !known.heard.is_older_than(HEARD_MAX)) {
            Some(known) => known,
            None => flight.look(None).await?,
        };
        if !writer.run.is_empty() && writer.run != known.run {
            return Err(LinkError::RolledBack);
        }
        flight.start_from(&known);
        let (newest_epoch, now) = (known.numbers.newest_epoch.max(epoch), self.server.now(&known));
        Ok(Known { numbers: Numbers { newest_epoch, now, ..known.numbers }, ..known })
    }

    async fn try_tick(
        &self,
        writer: &mut Writer,
        process: &str,
        epoch: u64,
        batch: &[Op],
    ) -> Result<Vec<Outcome>, LinkError> {
        let mode = if writer.crowded > 0 { Mode::Turn } else { Mode::Alone };
        writer.crowded = writer.crowded.saturating_sub(1);
        let mut flight = self.server.flight(process, mode);
        let known = self.stand(writer, &mut flight, epoch).await?;
        let sight = Sight { epoch, tokens: writer.tokens, numbers: known.numbers, fixtures: &known.fixtures };
        if writer.rolled_back {
            let stopped = loan::stop_lanes(self.options, &sight);
            let done = Done {
                process,
                epoch,
                ticked: &stopped,
                changes: stopped.changes()?,
                brought: Brought::default(),
                shown: Vec::new(),
                must: false,
                begin: Vec::new(),
                has_turn: true,
            };
            self.write(writer, known, done).await?;
            writer.rolled_back = false;
            return Err(LinkError::Moved);
        }
        let ticked = match loan::tick(&mut flight, self.options, &sight, batch).await {
            // What is known is a little old: with what is known now, at once.
            Err(LinkError::Moved) => {
                writer.crowded = CROWDED;
                writer.known = Some(flight.look(Some(known)).await?);
                return Box::pin(self.try_tick(writer, process, epoch, batch)).await;
            }
            other => other?,
        };
        // A token that was issued is never issued again, whatever becomes of the commit.
        writer.tokens = ticked.tokens();
        let changes = ticked.changes()?;
        let shown = self.showing.of_tick(&mut flight, &known.fixtures, &ticked, &changes).await?;
        let (brought, has_turn) = (std::mem::take(&mut flight.brought), matches!(flight.mode, Mode::Turn));
        let begin = Vec::new();
        let done = Done { process, epoch, ticked: &ticked, changes, brought, shown, must: false, begin, has_turn };
        self.write(writer, known, done).await?;
        let (outcomes, news) = ticked.finish();
        self.hints.tell(news);
        Ok(outcomes)
    }

    /// Writes what a tick changed, and remembers where the store stands then.
    async fn write(&self, writer: &mut Writer, mut known: Known, done: Done<'_>) -> Result<(), LinkError> {
        let changes = &done.changes;
        let writes = done.must || !changes.is_empty();
        if writes && known.run.is_empty() {
            known.run = new_run();
        }
        if !writes {
            if done.has_turn {
                self.server.give_turn(&self.server.writing, done.process).await?;
            }
            writer.known = Some(known);
            return Ok(());
        }
        let tag = new_tag();
        let commands = self.commands(&known, &done, tag)?;
        // Whoever was stopped for long has a time that is long past.
        if known.heard.is_older_than(LATE_MAX) {
            return Err(LinkError::Moved);
        }
        let mut answers = self.server.writing.commit(commands).await?;
        let heard = Heard::from_time(answers.pop().unwrap_or(Value::Nil))?;
        // Before the time there is what was shown.
        self.showing.heed(answers.drain(answers.len().saturating_sub(done.shown.len())..));
        let alone = !done.has_turn && !done.must;
        self.confirm(Certain { version: known.version + 1, tag }, heard);
        writer.note(known, &Written { ticked: done.ticked, changes, tag, alone });
        Ok(())
    }

    /// Keeps in mind what is written for certain.
    fn confirm(&self, certain: Certain, heard: Heard) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        if confirmed.is_none_or(|(before, _)| before.version < certain.version) {
            *confirmed = Some((certain, heard));
        }
    }

    fn notice_rollback(&self, writer: &mut Writer) {
        tracing::error!(
            server = %self.server.name,
            "the server has lost writes that it had acknowledged (a failover, or a restored backup): all lanes are \
             stopped; observe every lane, match what was sent, then reconcile"
        );
        *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = None;
        writer.forget();
        (writer.rolled_back, writer.crowded) = (true, 0);
        writer.run.clear();
    }

    /// The commands of a commit. The last tells the time, and those before it show.
    fn commands(&self, known: &Known, done: &Done<'_>, tag: u64) -> Result<Vec<Cmd>, Damaged> {
        let mut commands =
            self.server.commands(known, &done.changes, &done.brought, Author { epoch: done.epoch, tag })?;
        commands.extend(done.begin.iter().cloned());
        commands.push(self.server.publish(done.ticked, done.epoch));
        commands.extend(done.shown.iter().cloned());
        commands.push(redis::cmd("TIME"));
        Ok(commands)
    }

    async fn answer(&self, query: Query) -> Result<Reply, StoreError> {
        let epoch = self.epoch().await?;
        let _turn = self.readers.acquire().await.map_err(|_closed| StoreError::Closed)?;
        let process = format!("{epoch}1");
        for disturbed in 0..TRIES_MAX {
            // A turn is written: whoever only looks takes none.
            let mode = if self.looks || disturbed < DISTURBED_MAX { Mode::Look } else { Mode::Turn };
            match self.try_answer(&process, epoch, mode, query.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(LinkError::Moved) => {}
                Err(error) => return Err(error.at(&self.server.name)),
            }
        }
        Err(StoreError::Unknown)
    }

    /// What a read will ask for first, if the fixtures are still what they were.
    async fn first_wants(&self, known: &Known, epoch: u64, query: Query) -> Vec<Want> {
        let numbers = Numbers { now: self.server.now(known), ..known.numbers };
        let sight = Sight { epoch, tokens: 0, numbers, fixtures: &known.fixtures };
        let mut first = FirstWants::default();
        // It ends where it asks, or asks for nothing.
        let _ended = loan::read(&mut first, self.options, &sight, query).await;
        first.0
    }

    async fn try_answer(&self, process: &str, epoch: u64, mode: Mode, query: Query) -> Result<Reply, LinkError> {
        let mut flight = Flight { link: &self.server.reading, ..self.server.flight(process, mode) };
        let before = self.read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut known = match before.clone() {
            Some(before) => {
                let wants = self.first_wants(&before, epoch, query.clone()).await;
                flight.look_for(before, wants).await?
            }
            None => flight.look(None).await?,
        };
        // Another store than before: nothing of what was known holds.
        if before.is_some_and(|before| before.run != known.run || before.version > known.version) {
            known = flight.look(None).await?;
        }
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(known.clone());
        let numbers = Numbers { now: self.server.now(&known), ..known.numbers };
        let sight = Sight { epoch, tokens: 0, numbers, fixtures: &known.fixtures };
        let reply = loan::read(&mut flight, self.options, &sight, query).await;
        if let Mode::Turn = mode {
            self.server.give_turn(&self.server.reading, process).await?;
        }
        reply
    }
}

impl Writer {
    /// Keeps in mind where the store stands after a commit.
    fn note(&mut self, mut known: Known, written: &Written<'_>) {
        let Written { ticked, changes, tag, alone } = written;
        if *alone {
            if self.shelf_version != known.version {
                self.shelf.clear();
            }
            self.shelf.learn(ticked, changes, &known.numbers);
            self.shelf_version = known.version + 1;
        }
        known.step(changes);
        self.sent = Some(Certain { version: known.version, tag: *tag });
        self.run.clone_from(&known.run);
        if let Some(rows) = changes.fixtures {
            known.fixtures.extend(rows.iter().map(|(key, fixture)| (key.clone(), fixture.clone())));
        }
        self.known = Some(known);
    }

    /// Notes that nothing is known of where the store stands, so that all of it is asked anew.
    fn forget(&mut self) {
        (self.known, self.sent, self.shelf_version) = (None, None, 0);
        self.shelf.clear();
        self.turn += 1;
    }
}

impl Store for RedisStore {
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
