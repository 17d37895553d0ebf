//! One connection to the node that has the store's slot: calls of scripts, commits, and what
//! to do when the node says that it is not the one, or not now.
//!
//! ```text
//!   call ──▶ EVALSHA ──▶ answer
//!              │ NOSCRIPT                        ──▶ EVAL, which the node remembers
//!              │ MOVED                           ──▶ the node that it names, from now on
//!              │ ASK, TRYAGAIN, LOADING …        ──▶ again, after a moment
//!              │ READONLY                        ──▶ another connection
//!              └ nothing, or a broken connection ──▶ outcome unknown
//! ```
//!
//! Whoever means to commit watches `numbers` from its fetch on: the commit is a transaction
//! that does nothing if `numbers` changed since, or if it is another connection by then. Its commands may be sent before
//! it is known whether it is to be done: they wait at the server for its end, and a connection that lacks one is given up.
//!
//! A store has one slot, so following what a node says is all that a cluster asks for; no
//! map of slots is kept. An error that a node gives by name means that the script wrote
//! nothing (a start makes sure that none is stopped half way), so it is safe to call again. A connection
//! that breaks is not: whoever calls decides.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, ServerError, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::ask::Arguments;
use super::keys::{Key, Script};
use super::place::Place;
use crate::store::StoreError;
use crate::store::loan::Damaged;
use crate::store::sent::Sent;

/// How long the server may take to answer, unless a test says otherwise: longer than a sync of its log may stall.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long it may take to connect.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long a node is asked again that says it cannot answer now.
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// How long it is left alone in between.
const AGAIN: Duration = Duration::from_millis(10);

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Server(#[from] RedisError),
    /// No connection was made.
    #[error("not reached: {0}")]
    Away(RedisError),
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// Another process wrote between two calls that belong together, or the connection is
    /// another one.
    #[error("another process wrote meanwhile")]
    Moved,
    /// What this process knows to be written is not there.
    #[error("the server has lost writes that it had acknowledged")]
    RolledBack,
    /// A newer version wrote it.
    #[error("it has format {0}")]
    Newer(u32),
    /// A version wrote it that was never released.
    #[error("it has format {0}, of a version from before the first release, which this one does not read")]
    Older(u32),
    /// Others ticked all the time.
    #[error("others had the turn for too long")]
    Crowded,
}

impl LinkError {
    /// What the caller is told of a failure at this server.
    pub(super) fn at(self, server: &str) -> StoreError {
        let (error, is_away) = match self {
            LinkError::Damaged(damaged) => return StoreError::Damaged(damaged.to_string()),
            LinkError::Moved | LinkError::RolledBack | LinkError::Crowded => return StoreError::Unknown,
            LinkError::Newer(found) => {
                return StoreError::NewerFormat { path: server.to_owned(), found, known: super::FORMAT };
            }
            older @ LinkError::Older(_) => {
                return StoreError::Io { path: server.to_owned(), reason: older.to_string() };
            }
            LinkError::Server(error) => (error, false),
            LinkError::Away(error) => (error, true),
        };
        let path = server.to_owned();
        if let Some(reason) = mistrust(&error) {
            return StoreError::Io { path, reason };
        }
        match error.code().map(Says::of) {
            Some(Says::Full) => StoreError::DiskFull { path },
            Some(Says::Other) => StoreError::Io { path, reason: error.to_string() },
            Some(_) | None if is_away => StoreError::Unreachable { server: path, reason: error.to_string() },
            Some(_) | None => StoreError::Unknown,
        }
    }
}

/// Why the server is not believed to be itself, if that is what failed: nothing will change by trying again.
fn mistrust(error: &RedisError) -> Option<String> {
    // The client shares what it says with clones of the error.
    let shared = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    let io = shared.downcast_ref::<std::io::Error>()?;
    match io.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(reason) => Some(format!("the server's certificate is refused: {reason}")),
        other => Some(format!("TLS with the server failed: {other}")),
    }
}

/// What a node says instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// Another node has the slot.
    Moved,
    /// It does not know the script.
    NoScript,
    /// Not now.
    Again,
    /// It does not take writes, so it is the wrong one.
    Wrong,
    /// It has no room.
    Full,
    Other,
}

impl Says {
    fn of(code: &str) -> Says {
        match code {
            "MOVED" => Says::Moved,
            "NOSCRIPT" => Says::NoScript,
            // Asking there would bring nothing: a call names all keys of the store, of which some are on no node, and that
            // looks to the other like a slot that is still on its way.
            "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "BUSY" | "NOREPLICAS" => Says::Again,
            "READONLY" | "UNBLOCKED" => Says::Wrong,
            "OOM" | "MISCONF" => Says::Full,
            _ => Says::Other,
        }
    }
}

/// The connection, made when it is first used and again when it broke.
pub(super) struct Link {
    place: Place,
    keys: Vec<String>,
    /// How long the server may take to answer.
    pub(super) answer_max: Duration,
    to: Mutex<To>,
    /// Whether the connection was left in the middle of a transaction.
    is_torn: AtomicBool,
}

/// Where the connection leads.
#[derive(Default)]
struct To {
    connection: Option<MultiplexedConnection>,
    /// The node that was named last; one of those in the URL, if none was.
    node: Option<String>,
    /// Which of those in the URL is tried next.
    next: usize,
}

impl Link {
    pub(super) fn new(place: Place, keys: Vec<String>) -> Link {
        Link { place, keys, answer_max: ANSWER_MAX, to: Mutex::default(), is_torn: AtomicBool::new(false) }
    }

    /// Calls a script with these arguments.
    pub(super) async fn call(&self, script: &Script, arguments: &Arguments) -> Result<Value, LinkError> {
        self.call_watching(script, arguments, false).await
    }

    /// Calls a script; from then on a commit on this connection does nothing if another came
    /// first.
    pub(super) async fn watch(&self, script: &Script, arguments: &Arguments) -> Result<Value, LinkError> {
        self.call_watching(script, arguments, true).await
    }

    /// Whether somebody gave up in the middle of a transaction, so that what was sent since may have become part of it.
    pub(super) fn is_torn(&self) -> bool {
        self.is_torn.load(Ordering::Acquire)
    }

    /// The connection as it is, for what must go out on one. If there is none, whatever it watched is forgotten.
    pub(super) async fn line(&self) -> Option<Line<'_>> {
        let connection = self.to.lock().await.connection.clone();
        let connection = connection.filter(|_| !self.is_torn())?;
        Some(Line { link: self, connection })
    }

    /// What each of these commands reads. Nothing keeps them together, or with others, but a commit of the caller's that
    /// fails if somebody wrote meanwhile.
    pub(super) async fn read(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, LinkError> {
        let connection = self.connect().await.map_err(LinkError::Away)?;
        let mut all = Pipeline::with_capacity(commands.len());
        for command in commands {
            all.add_command(command);
        }
        self.unless_refused(answers(connection, all).await).await
    }

    async fn call_watching(&self, script: &Script, arguments: &Arguments, watch: bool) -> Result<Value, LinkError> {
        let watch = watch.then_some(&[][..]);
        let by_hash = self.request(self.command("EVALSHA", &script.hash, None, arguments), watch);
        let until = Instant::now() + AGAIN_MAX;
        loop {
            let mut connection = self.connect().await.map_err(LinkError::Away)?;
            let error = match last_answer(&mut connection, &by_hash).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let says = error.code().map(Says::of);
            match says {
                Some(Says::NoScript) => {
                    let whole = self.request(self.command("EVAL", &script.source, None, arguments), watch);
                    match last_answer(&mut connection, &whole).await {
                        Ok(answer) => return Ok(answer),
                        Err(error) if is_passing(&error) => {}
                        Err(error) => return Err(self.gave_up(error).await),
                    }
                }
                Some(Says::Moved) => self.follow(&error).await,
                Some(Says::Wrong) => self.forget().await,
                Some(Says::Again) => {}
                Some(Says::Full | Says::Other) | None => return Err(self.gave_up(error).await),
            }
            if Instant::now() > until {
                return Err(error.into());
            }
            if says != Some(Says::Moved) {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// Does all of these commands, or none if `numbers` changed since it was watched; answers
    /// what each of them brought.
    pub(super) async fn commit(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, LinkError> {
        let line = self.line().await.ok_or(LinkError::Moved)?;
        line.prepare(commands).await.launch().await.land().await
    }

    /// Makes of a commit's answers what each command brought.
    async fn brought(&self, answers: Result<Vec<Value>, RedisError>) -> Result<Vec<Value>, LinkError> {
        match last(self.unless_refused(answers).await?) {
            Value::Nil => Err(LinkError::Moved),
            Value::Array(brought) => Ok(brought),
            other => Err(Damaged::new("answers", format!("{other:?} to a commit")).into()),
        }
    }

    /// The answers, if each is one. A node that is no longer the right one has done nothing.
    async fn unless_refused(&self, answers: Result<Vec<Value>, RedisError>) -> Result<Vec<Value>, LinkError> {
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return Err(self.gave_up(error).await),
        };
        match refused(&answers) {
            Some(error) if is_passing(&error) => {
                self.follow(&error).await;
                Err(LinkError::Moved)
            }
            Some(error) => Err(error.into()),
            None => Ok(answers),
        }
    }

    /// A command on one of the keys.
    pub(super) fn on(&self, name: &str, key: Key, arguments: &Arguments) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(self.key(key));
        push_all(&mut command, arguments);
        command
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    pub(super) fn key(&self, key: Key) -> &str {
        &self.keys[key as usize - 1]
    }

    /// The call, and the watch and reads before it: a watch that was for an earlier tick is over.
    fn request(&self, call: Cmd, watch: Option<&[Cmd]>) -> Pipeline {
        let mut all = Pipeline::new();
        if let Some(reads) = watch {
            all.cmd("UNWATCH");
            all.cmd("WATCH").arg(self.key(Key::Numbers));
            reads.iter().for_each(|read| _ = all.add_command(read.clone()));
        }
        all.add_command(call);
        all
    }

    /// Runs a plain command, on whatever node the connection leads to.
    pub(super) async fn run(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut connection = self.connect().await?;
        command.query_async(&mut connection).await
    }

    /// A call of a script, on these keys or on all.
    fn command(&self, verb: &str, script: &str, keys: Option<&[Key]>, arguments: &Arguments) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script);
        match keys {
            Some(keys) => command.arg(keys.len()).arg(keys.iter().map(|key| self.key(*key)).collect::<Vec<_>>()),
            None => command.arg(self.keys.len()).arg(&self.keys),
        };
        push_all(&mut command, arguments);
        command
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut to = self.to.lock().await;
        if self.is_torn.swap(false, Ordering::AcqRel) {
            to.connection = None;
        }
        if let Some(connection) = &to.connection {
            return Ok(connection.clone());
        }
        let named = to.node.take();
        let client = match &named {
            Some(node) => self.place.client_of(node)?,
            None => {
                to.next += 1;
                self.place.client(to.next - 1)?
            }
        };
        let connection = self.connection_to(&client).await?;
        to.connection = Some(connection.clone());
        to.node = named;
        Ok(connection)
    }

    async fn connection_to(&self, client: &Client) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.answer_max))
            .set_connection_timeout(Some(CONNECT_MAX));
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Goes where a node says that the slot is.
    async fn follow(&self, error: &RedisError) {
        let mut to = self.to.lock().await;
        to.connection = None;
        // Whoever says ASK names another node, too, and still has the slot.
        let moved = error.redirect_node().filter(|_| error.code().map(Says::of) == Some(Says::Moved));
        to.node = moved.map(|(node, _)| node.to_owned());
    }

    async fn forget(&self) {
        let mut to = self.to.lock().await;
        to.connection = None;
        to.node = None;
    }

    /// Another connection next time, unless the server itself gave the error.
    async fn gave_up(&self, error: RedisError) -> LinkError {
        if error.code().is_none() {
            self.forget().await;
        }
        error.into()
    }
}

/// One connection, on which things are done in the order in which they are sent, before any of them is answered.
pub(super) struct Line<'a> {
    link: &'a Link,
    connection: MultiplexedConnection,
}

/// What reads brought, and a script.
type Looked = (Vec<Value>, Value);

impl<'a> Line<'a> {
    /// Watches, reads, and calls a script that needs no other keys than these. It is tried once, and the script sent
    /// whole: a second try would come behind what was sent meanwhile, and become part of that if it is a transaction.
    pub(super) async fn look(
        &self,
        reads: &[Cmd],
        keys: &[Key],
        script: &Script,
        arguments: &Arguments,
    ) -> Sent<'a, Result<Looked, LinkError>> {
        let Line { link, connection } = self;
        let all = link.request(link.command("EVAL", &script.source, Some(keys), arguments), Some(reads));
        let (link, sent, count) = (*link, answers(connection.clone(), all), reads.len());
        Sent::now(async move {
            let mut answers = link.unless_refused(sent.await).await?;
            let script = answers.pop().unwrap_or(Value::Nil);
            Ok((answers.split_off(answers.len().saturating_sub(count)), script))
        })
        .await
    }

    /// Calls a script that needs no other keys than these. It is tried once, too: where the server does not know it, or is
    /// not the right one, nothing is done, and the script is sent whole the next time.
    pub(super) async fn call(
        self,
        keys: &[Key],
        script: &'a Script,
        arguments: &Arguments,
    ) -> Sent<'a, Result<Value, LinkError>> {
        let Line { link, connection } = self;
        let (verb, text) = match script.is_known.load(Ordering::Acquire) {
            true => ("EVALSHA", &script.hash),
            false => ("EVAL", &script.source),
        };
        let sent = answers(connection, link.request(link.command(verb, text, Some(keys), arguments), None));
        Sent::now(async move {
            let answered = sent.await;
            let refused = answered.as_ref().ok().and_then(|answers| refused(answers));
            let is_known = refused.is_none_or(|error| error.code().map(Says::of) != Some(Says::NoScript));
            script.is_known.store(is_known, Ordering::Release);
            match is_known {
                true => Ok(last(link.unless_refused(answered).await?)),
                false => Err(LinkError::Moved),
            }
        })
        .await
    }

    /// Sends these commands, to be done when they are told to be.
    pub(super) async fn prepare(self, commands: Vec<Cmd>) -> Prepared<'a> {
        let Line { link, connection } = self;
        let mut all = Pipeline::with_capacity(commands.len() + 1);
        all.cmd("MULTI");
        for command in commands {
            all.add_command(command);
        }
        // From the first byte on, until the end is answered.
        let torn = Torn(Some(&link.is_torn));
        let queued = Sent::now(answers(connection.clone(), all)).await;
        Prepared { link, connection, queued, torn }
    }
}

/// A transaction at the server that waits for its end. If it is dropped before its end is answered, its connection is,
/// too: whatever else was sent on it might become part of the transaction.
pub(super) struct Prepared<'a> {
    link: &'a Link,
    connection: MultiplexedConnection,
    queued: Sent<'a, Result<Vec<Value>, RedisError>>,
    torn: Torn<'a>,
}

impl<'a> Prepared<'a> {
    /// Has all of it done, or nothing if `numbers` changed since it was watched, and does not wait for it. What is sent
    /// later is done later.
    pub(super) async fn launch(self) -> Commit<'a> {
        self.end("EXEC").await
    }

    /// Has nothing of it done.
    pub(super) async fn discard(self) -> Result<(), LinkError> {
        let Commit { link, sent } = self.end("DISCARD").await;
        link.unless_refused(sent.land().await).await.map(drop)
    }

    async fn end(self, how: &str) -> Commit<'a> {
        let Prepared { link, connection, queued, torn } = self;
        let mut end = Pipeline::with_capacity(1);
        end.cmd(how);
        let ended = Sent::now(answers(connection, end)).await;
        let both = async move {
            let (queued, ended) = (queued.land().await, ended.land().await);
            // Not before: the client leaves out what nobody waits for any more.
            torn.mend();
            let mut answers = queued?;
            answers.extend(ended?);
            Ok(answers)
        };
        Commit { link, sent: Sent::Waiting(Box::pin(both)) }
    }
}

/// Notes, if it is dropped, that a connection is in the middle of a transaction.
struct Torn<'a>(Option<&'a AtomicBool>);

impl Torn<'_> {
    /// Its transaction has ended.
    fn mend(mut self) {
        self.0 = None;
    }
}

impl Drop for Torn<'_> {
    fn drop(&mut self) {
        if let Some(is_torn) = self.0 {
            is_torn.store(true, Ordering::Release);
        }
    }
}

/// A commit that is sent.
pub(super) struct Commit<'a> {
    link: &'a Link,
    sent: Sent<'a, Result<Vec<Value>, RedisError>>,
}

impl Commit<'_> {
    /// Waits for what each command brings.
    pub(super) async fn land(self) -> Result<Vec<Value>, LinkError> {
        let answers = self.sent.land().await;
        self.link.brought(answers).await
    }
}

fn push_all(command: &mut Cmd, arguments: &Arguments) {
    let mut start = 0;
    for &end in &arguments.ends {
        command.arg(&arguments.bytes[start..end]);
        start = end;
    }
}

/// What the last of these commands brought, or what the first that failed says.
async fn last_answer(connection: &mut MultiplexedConnection, all: &Pipeline) -> Result<Value, RedisError> {
    let answers = connection.req_packed_commands(all, 0, all.len()).await?;
    match refused(&answers) {
        Some(error) => Err(error),
        None => Ok(last(answers)),
    }
}

async fn answers(mut connection: MultiplexedConnection, all: Pipeline) -> Result<Vec<Value>, RedisError> {
    connection.req_packed_commands(&all, 0, all.len()).await
}

fn last(answers: Vec<Value>) -> Value {
    answers.into_iter().next_back().unwrap_or(Value::Nil)
}

/// What the first command says that was not done; inside of a transaction too.
fn refused(answers: &[Value]) -> Option<RedisError> {
    let error = |error: &ServerError| RedisError::from(error.clone());
    answers.iter().find_map(|answer| match answer {
        Value::ServerError(refusal) => Some(error(refusal)),
        Value::Array(brought) => brought.iter().find_map(|brought| match brought {
            Value::ServerError(refusal) => Some(error(refusal)),
            _ => None,
        }),
        _ => None,
    })
}

/// Whether a node said it by name, and the call may be made again.
fn is_passing(error: &RedisError) -> bool {
    matches!(error.code().map(Says::of), Some(Says::Moved | Says::Again | Says::Wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_decides_what_becomes_of_a_call() {
        let check = |code: &str, says| assert_eq!(Says::of(code), says, "{code}");
        check("MOVED", Says::Moved);
        check("NOSCRIPT", Says::NoScript);
        for code in ["ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS"] {
            check(code, Says::Again);
        }
        check("READONLY", Says::Wrong);
        check("OOM", Says::Full);
        check("WRONGTYPE", Says::Other);
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_named_with_the_reason() {
        let vitals = crate::store::redis::vitals("redis://me:secret@127.0.0.1:1").await;
        let Err(error @ StoreError::Unreachable { server, reason }) = &vitals else { panic!("{vitals:?}") };
        assert_eq!(server, "redis at 127.0.0.1:1");
        assert!(reason.contains("refused") && error.is_retryable(), "{error}");
    }
}
