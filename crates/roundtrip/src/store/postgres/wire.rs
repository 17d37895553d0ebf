//! One connection: statements prepared once, flights of them sent together.
//!
//! ```text
//!   launch(calls) ──▶ all sent at once ──▶ land: all answers, in order
//! ```
//!
//! A flight may be launched while others are in the air: the server does one after the other.
//!
//! Failure modes: a statement that fails makes all after it fail, and a commit in the same
//! flight then rolls back; so if any call of a flight failed, nothing of it is there. A
//! connection that breaks while a commit is under way leaves the outcome unknown. One on which nothing is answered for too
//! long is given up, with all that is under way on it: it broke, whatever the network says.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::condition::number;
use super::copy::Rows;
use super::tls::{Dial, Line};
use crate::store::StoreError;
use crate::store::loan::Damaged;
use crate::store::sent::Sent;

/// Time after which the server ends a transaction whose process went silent: it would hold
/// up every other process.
const SILENT_TRANSACTION: &str = "10s";
/// How long a batch waits for those of other processes: longer than the server takes to end
/// one that went silent.
const LOCK_MAX: &str = "30s";
/// How long the server may answer nothing while it is waited for, unless a test says otherwise: a statement may wait for
/// others as long as `LOCK_MAX` before it does anything, and half as long for a disk or a network that is slow.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(45);

/// A parameter of a statement.
pub(super) type Param<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// A statement with what it is given.
pub(super) struct Call<'a> {
    sql: &'static str,
    given: Given<'a>,
}

enum Given<'a> {
    Params(Vec<Param<'a>>),
    /// Rows to be copied, in their binary form.
    Rows(Bytes),
}

impl<'a> Call<'a> {
    pub(super) fn new(sql: &'static str, params: Vec<Param<'a>>) -> Call<'a> {
        Call { sql, given: Given::Params(params) }
    }

    /// Copies rows. What is sent after it waits until the server asks for them.
    pub(super) fn copy<const COLUMNS: usize>(sql: &'static str, rows: Rows<COLUMNS>) -> Call<'a> {
        Call { sql, given: Given::Rows(rows.finish()) }
    }

    pub(super) fn is_copy(&self) -> bool {
        matches!(self.given, Given::Rows(_))
    }

    async fn fly(&self, client: &Client, statement: &Statement) -> Answer {
        match &self.given {
            Given::Params(params) => {
                let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|p| &**p as &(dyn ToSql + Sync)).collect();
                client.query(statement, &params).await
            }
            Given::Rows(rows) => {
                let mut copy = pin!(client.copy_in(statement).await?);
                copy.send(rows.clone()).await?;
                copy.finish().await?;
                Ok(Vec::new())
            }
        }
    }
}

/// A parameter, boxed.
pub(super) fn param<'a>(value: impl ToSql + Sync + Send + 'a) -> Param<'a> {
    Box::new(value)
}

/// Why a call to the server brought nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum PgError {
    #[error(transparent)]
    Server(#[from] tokio_postgres::Error),
    /// No connection was made.
    #[error("not reached: {}", in_words(.0))]
    Away(tokio_postgres::Error),
    /// Nobody answered whoever connected.
    #[error("not reached: {}", in_vain(*.within))]
    Silent { within: Duration },
    /// Nobody answered what was sent; it may be done all the same.
    #[error("the connection is given up: {}", in_vain(*.within))]
    Unanswered { within: Duration },
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// A newer version upgraded the schema so that this one cannot go on.
    #[error("the schema needs version {needs}, and this one knows {known}")]
    Newer { needs: i32, known: i32 },
}

impl PgError {
    /// Whether a commit found something else than it expected, and so did nothing.
    pub(super) fn is_otherwise(&self) -> bool {
        let PgError::Server(error) = self else { return false };
        error
            .as_db_error()
            .is_some_and(|db| *db.code() == SqlState::NOT_NULL_VIOLATION && db.table() == Some("numbers"))
    }

    /// Whether it waited in vain: perhaps for a process that was stopped and has the lock.
    pub(super) fn is_held_up(&self) -> bool {
        match self {
            PgError::Unanswered { .. } => true,
            PgError::Server(error) => error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE),
            _ => false,
        }
    }

    /// What the caller is told of a failure at this server.
    pub(super) fn at(self, server: &str) -> StoreError {
        let path = server.to_owned();
        let (error, is_away) = match self {
            PgError::Damaged(what) => return StoreError::Damaged(what.to_string()),
            PgError::Newer { needs, known } => {
                return StoreError::NewerFormat { path, found: number(needs), known: number(known) };
            }
            PgError::Silent { within } => {
                return StoreError::Unreachable { server: path, reason: in_vain(within) };
            }
            PgError::Unanswered { .. } => return StoreError::Unknown,
            PgError::Server(error) => (error, false),
            PgError::Away(error) => (error, true),
        };
        match error.code() {
            Some(&SqlState::DISK_FULL) => return StoreError::DiskFull { path },
            Some(code) if !is_passing(code) => return StoreError::Io { path, reason: in_words(&error) },
            // The transaction was rolled back, or the server went away: it may succeed again.
            Some(_) => {}
            None => {
                if let Some(reason) = refused_certificate(&error) {
                    return StoreError::Io { path, reason };
                }
            }
        }
        match is_away {
            true => StoreError::Unreachable { server: path, reason: in_words(&error) },
            false => StoreError::Unknown,
        }
    }
}

fn in_vain(within: Duration) -> String {
    format!("no answer within {} s", within.as_secs())
}

fn is_passing(code: &SqlState) -> bool {
    let class = &code.code()[..2];
    // Connection failures, rollbacks, operator intervention; too many connections.
    matches!(class, "08" | "40" | "57") || matches!(code.code(), "53300" | "25P03" | "55P03")
}

/// Why TLS did not come about: trying again would not help.
fn refused_certificate(error: &tokio_postgres::Error) -> Option<String> {
    let io: &std::io::Error = std::error::Error::source(error)?.downcast_ref()?;
    let tls: &rustls::Error = io.get_ref()?.downcast_ref()?;
    Some(format!("the server's certificate is not accepted: {tls}"))
}

/// The server's message, or the system's, which `Display` alone leaves out.
fn in_words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
        (None, Some(cause)) => cause.to_string(),
        (None, None) => error.to_string(),
    }
}

/// A connection with its prepared statements.
pub(super) struct Wire {
    talk: Arc<Talk>,
    /// How long the server may answer nothing; none, for what takes as long as it takes.
    pub(super) answer_max: Option<Duration>,
    statements: HashMap<&'static str, Statement>,
}

/// What all that is under way on a connection shares.
struct Talk {
    client: Client,
    /// When the server last answered.
    heard: Mutex<Instant>,
    /// Whether it was silent for too long.
    is_given_up: watch::Sender<bool>,
}

impl Talk {
    /// Waits for what the server answers, as long as it answers anything: what was sent before has its own time.
    async fn answer<T>(&self, answer_max: Option<Duration>, call: impl Future<Output = T>) -> Result<T, PgError> {
        let (mut call, mut since) = (pin!(call), Instant::now());
        let Some(within) = answer_max else { return Ok(call.await) };
        loop {
            if let Ok(answer) = tokio::time::timeout_at(since + within, &mut call).await {
                self.hear();
                return Ok(answer);
            }
            let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            if heard <= since {
                self.is_given_up.send_replace(true);
                return Err(PgError::Unanswered { within });
            }
            since = heard;
        }
    }

    fn hear(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Carries what is said, until it ends by itself, which it does once nobody holds it and all is answered; or until
/// it is given up.
async fn carry(line: Line, mut is_given_up: watch::Receiver<bool>, answer_max: Option<Duration>) {
    let given_up = async {
        if is_given_up.wait_for(|is_given_up| *is_given_up).await.is_err() {
            match answer_max {
                Some(within) => tokio::time::sleep(within).await,
                None => std::future::pending().await,
            }
        }
    };
    tokio::select! {
        ended = line => if let Err(error) = ended {
            tracing::warn!(%error, "a connection to the server broke");
        },
        () = given_up => tracing::warn!("a connection to the server is given up: nothing is answered on it"),
    }
}

impl Wire {
    /// Connects. Everything happens in this schema, by indexes whatever statistics say: a
    /// table that was empty when it was last looked at must not be scanned when it is full.
    pub(super) async fn open(dial: &Dial, schema: &str, answer_max: Option<Duration>) -> Result<Wire, PgError> {
        let (client, line) = dial.connect().await?;
        let (is_given_up, told) = watch::channel(false);
        tokio::spawn(carry(line, told, answer_max));
        let talk = Arc::new(Talk { client, heard: Mutex::new(Instant::now()), is_given_up });
        let settings = format!(
            "SET search_path TO {}; SET idle_in_transaction_session_timeout = '{SILENT_TRANSACTION}'; \
             SET lock_timeout = '{LOCK_MAX}'; \
             SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
             SET plan_cache_mode = force_generic_plan; SET jit = off; SET client_min_messages = warning",
            quoted(schema)
        );
        match talk.answer(answer_max, talk.client.batch_execute(&settings)).await {
            Ok(set) => set.map_err(PgError::Away)?,
            Err(PgError::Unanswered { within }) => return Err(PgError::Silent { within }),
            Err(error) => return Err(error),
        }
        Ok(Wire { talk, answer_max, statements: HashMap::new() })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.talk.client.is_closed() || *self.talk.is_given_up.borrow()
    }

    /// Runs statements without parameters or answers.
    pub(super) async fn run(&self, sql: &str) -> Result<(), PgError> {
        self.run_within(self.answer_max, sql).await
    }

    /// Runs statements that take as long as they take.
    pub(super) async fn run_at_length(&self, sql: &str) -> Result<(), PgError> {
        self.run_within(None, sql).await
    }

    async fn run_within(&self, answer_max: Option<Duration>, sql: &str) -> Result<(), PgError> {
        Ok(self.talk.answer(answer_max, self.talk.client.batch_execute(sql)).await??)
    }

    /// Runs one statement.
    pub(super) async fn query(&mut self, sql: &'static str, params: Vec<Param<'_>>) -> Result<Vec<Row>, PgError> {
        let mut answers = self.send("", vec![Call::new(sql, params)], "").await?;
        Ok(answers.pop().unwrap_or_default())
    }

    /// Sends everything at once: a plain command, the calls, another plain command. The
    /// first failure is the answer, when all have been answered.
    pub(super) async fn send(
        &mut self,
        before: &'static str,
        calls: Vec<Call<'_>>,
        after: &'static str,
    ) -> Result<Vec<Vec<Row>>, PgError> {
        self.launch(before, calls, after).await?.land().await
    }

    /// The same, without waiting for the answers. What is sent later is done later.
    pub(super) async fn launch<'a>(
        &mut self,
        before: &'static str,
        calls: Vec<Call<'a>>,
        after: &'static str,
    ) -> Result<Sent<'a, Answers>, PgError> {
        let mut ready = Vec::with_capacity(calls.len());
        for call in calls {
            if !self.statements.contains_key(call.sql) {
                let prepared = self.talk.answer(self.answer_max, self.talk.client.prepare(call.sql));
                let statement = prepared.await??;
                self.statements.insert(call.sql, statement);
            }
            ready.push((self.statements[call.sql].clone(), call));
        }
        Ok(Sent::now(fly(self.talk.clone(), self.answer_max, before, ready, after)).await)
    }
}

/// What each call brought.
pub(super) type Answers = Result<Vec<Vec<Row>>, PgError>;

async fn fly(
    talk: Arc<Talk>,
    answer_max: Option<Duration>,
    before: &'static str,
    calls: Vec<(Statement, Call<'_>)>,
    after: &'static str,
) -> Answers {
    let (talk, client) = (&*talk, &talk.client);
    let plain = |command: &'static str| async move {
        if !command.is_empty() {
            client.batch_execute(command).await?;
        }
        Ok(Vec::new())
    };
    let mut under_way: Vec<Answering<'_>> = vec![Box::pin(plain(before))];
    under_way.extend(calls.iter().map(|(statement, call)| {
        Box::pin(async move {
            let answer = call.fly(client, statement).await;
            talk.hear();
            answer
        }) as Answering<'_>
    }));
    under_way.push(Box::pin(plain(after)));
    let answers = talk.answer(answer_max, in_order(under_way)).await?;
    let mut answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
    answers.pop();
    answers.remove(0);
    Ok(answers)
}

type Answer = Result<Vec<Row>, tokio_postgres::Error>;
type Answering<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// Waits for all of them, polling in order: the first poll is what sends a statement.
async fn in_order(mut under_way: Vec<Answering<'_>>) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = under_way.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waiting = false;
        for (future, answer) in under_way.iter_mut().zip(&mut answers) {
            if answer.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(done) => *answer = Some(done),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// A name as SQL writes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Postgres's integers are signed; ours are not. The bits are kept.
pub(super) fn int(value: u64) -> i64 {
    value.cast_signed()
}

pub(super) fn uint(value: i64) -> u64 {
    value.cast_unsigned()
}

/// A time; one beyond all calendars is the last one that the server knows.
pub(super) fn time(at: crate::words::UnixMs) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

/// A number whose order is kept, by moving zero to the middle.
pub(super) fn ordered(value: u64) -> i64 {
    (value ^ (1 << 63)).cast_signed()
}

pub(super) fn unordered(column: i64) -> u64 {
    column.cast_unsigned() ^ (1 << 63)
}

/// Thirty-two bytes of a column.
pub(super) fn hash(what: &str, bytes: &[u8]) -> Result<[u8; 32], Damaged> {
    bytes.try_into().map_err(|_| Damaged::new(what, "a hash of another length"))
}
