//! The Redis store's content, whole: read at one version, written page by page.
//!
//! How far a copy is stands under the key `copying`; while it is there no process starts on the
//! store. Nothing can keep processes out that have started before: every read is of the version at which
//! it began, and every page goes on from the version that the last one left, so whoever works on either store
//! is noticed at once.

use redis::{Cmd, Value};

use super::ask::{Arguments, bytes, each, group, list, live_row, number};
use super::bytes::{item, payload, receipt, seq};
use super::flight::{Flight, Heard, Known, Mode};
use super::keys::{Key, Script};
use super::link::LinkError;
use super::put::{Brought, key_of};
use super::server::Author;
use super::sorted::{FIELDS_MAX, Sorted};
use super::{FORMAT, RedisStore, Server, audit, new_run};
use crate::inbox::When;
use crate::store::archive::contents::{Contents, PAGE_BYTES};
use crate::store::archive::lent::{Keeper, LentContents};
use crate::store::archive::{Fault, Purpose};
use crate::store::disk::{ColdKey, ColdReceipt, GroupRow, ItemRow};
use crate::store::loan::{Changes, Damaged, FixtureRows, Found, Lender, LiveRow, Numbers, Want};
use crate::store::{Options, StoreError};
use crate::words::Payload;

/// By which the server knows whoever copies, should it have to wait for its turn.
const PROCESS: &str = "0";
/// How often a page is written anew, or a hash looked through, because the server is another one.
const TRIES_MAX: usize = 8;
/// Who wrote the versions of a copy: no process that will ever start.
const AUTHOR: Author = Author { epoch: 0, tag: 0 };

/// The content of the store at this URL.
pub(in crate::store) async fn contents(url: &str, purpose: Purpose) -> Result<Box<dyn Contents>, StoreError> {
    let keeper = RedisKeeper::open(url, purpose).await?;
    Ok(Box::new(LentContents::open(keeper).await?))
}

/// Whoever reads or writes a store whole.
pub(super) struct RedisKeeper {
    server: Server,
    script: Script,
    known: Known,
    brought: Brought,
    /// The fields that were looked for last.
    sorted: Option<Sorted>,
}

/// A row of a hash: its field, its value, and the value of the same field in the hash beside it.
pub(super) type HashRow = [Vec<u8>; 3];

impl RedisKeeper {
    async fn open(url: &str, purpose: Purpose) -> Result<RedisKeeper, StoreError> {
        let server = RedisStore::new(url, Options::default())?.server;
        match purpose {
            Purpose::Read => server.refuse_half_copied().await?,
            Purpose::Fill => {
                server.kinds().await?;
                server.check(false).await?;
            }
        }
        let known = server.flight(PROCESS, Mode::Look).look(None).await.map_err(|error| error.at(&server.name))?;
        if purpose == Purpose::Read && known.run.is_empty() {
            let reason = format!("there is none of the name {}", server.place.name);
            return Err(StoreError::NotAStore { path: server.name, reason });
        }
        Ok(RedisKeeper { server, script: Script::whole(), known, brought: Brought::default(), sorted: None })
    }

    /// How many fixtures were found.
    pub(super) fn fixtures(&self) -> u64 {
        self.known.fixtures.len() as u64
    }

    /// The number of the next request.
    pub(super) fn next_seq(&self) -> u64 {
        self.known.numbers.high.seq
    }

    /// What a part of `whole.lua` brings, at the version that is known.
    pub(super) async fn ask(&self, what: &str, with: &Arguments) -> Result<Value, LinkError> {
        self.ask_at(&self.known.version.to_string(), what, with).await
    }

    async fn ask_at(&self, version: &str, what: &str, with: &Arguments) -> Result<Value, LinkError> {
        let mut arguments = Arguments::of([version, what]);
        arguments.append(with);
        let mut answer = list(self.server.reading.call(&self.script, &arguments).await?)?;
        match (&bytes(answer.next())?[..], answer.next()) {
            (b"here", Some(brought)) => Ok(brought),
            _ => Err(LinkError::Moved),
        }
    }

    /// Up to so many fields of a hash after one, in their order; from the first on, if it is empty.
    pub(super) async fn fields_after(
        &mut self,
        key: Key,
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Box<[u8]>>, LinkError> {
        // What was looked for before may have changed since, if a page was written in between.
        let known = self.sorted.as_ref().filter(|_| !after.is_empty());
        if let Some(fields) = known.and_then(|sorted| sorted.after(key, after, limit)) {
            return Ok(fields);
        }
        for _ in 0..TRIES_MAX {
            let before = self.server_run().await?;
            let sorted = self.look_through(key, after).await?;
            // Another server, or a new start of the same, has them in another order.
            if self.server_run().await? == before {
                let fields = sorted.after(key, after, limit).unwrap_or_default();
                self.sorted = Some(sorted);
                return Ok(fields);
            }
        }
        Err(LinkError::Moved)
    }

    /// All fields of a hash; of `live`, those too that are as they came.
    async fn look_through(&self, key: Key, after: &[u8]) -> Result<Sorted, LinkError> {
        let (mut sorted, mut cursor) = (Sorted::new(key, after, FIELDS_MAX), b"0".to_vec());
        loop {
            let place = (key as usize).to_string();
            let mut found = list(self.ask("fields", &Arguments::of([place.as_bytes(), &cursor])).await?)?;
            cursor = bytes(found.next())?;
            for field in found {
                sorted.add(bytes(Some(field))?);
            }
            if cursor == b"0" {
                break;
            }
        }
        if key == Key::Live {
            self.add_fresh(&mut sorted, after).await?;
        }
        sorted.sort();
        Ok(sorted)
    }

    /// Adds the numbers of requests after one that are as they came.
    async fn add_fresh(&self, sorted: &mut Sorted, after: &[u8]) -> Result<(), LinkError> {
        let mut after = if after.is_empty() { 0 } else { seq(after)?.0 };
        while let Some((last, numbers)) = self.fresh_after(after).await? {
            numbers.into_iter().for_each(|number| sorted.add(number.into()));
            after = last;
        }
        Ok(())
    }

    /// Some numbers of requests after one that are as they came, and where to go on; nothing, if there are no more.
    pub(super) async fn fresh_after(&self, after: u64) -> Result<Option<(u64, Vec<Box<[u8]>>)>, LinkError> {
        let mut found = list(self.ask("fresh", &Arguments::of([after.to_string()])).await?)?;
        let Some(last) = found.next() else { return Ok(None) };
        let numbers = found.map(|number| Ok(bytes(Some(number))?.into()));
        Ok(Some((number(Some(last))?, numbers.collect::<Result<_, Damaged>>()?)))
    }

    /// Which start of which server answers.
    async fn server_run(&self) -> Result<String, LinkError> {
        let info: String = redis::from_redis_value(self.server.reading.run(redis::cmd("INFO").arg("server")).await?)
            .map_err(|error| Damaged::new("answers", error))?;
        let line = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok(line.ok_or_else(|| Damaged::new("answers", "INFO without a run_id"))?.trim().to_owned())
    }

    /// The rows of these fields, until they are longer than a page.
    pub(super) async fn rows(
        &self,
        key: Key,
        beside: Option<Key>,
        fields: &[Box<[u8]>],
    ) -> Result<Vec<HashRow>, LinkError> {
        let mut arguments = Arguments::default();
        arguments.push_number(key as usize);
        arguments.push_number(beside.map_or(0, |key| key as usize));
        arguments.push_number(PAGE_BYTES);
        arguments.push_all(fields);
        Ok(each(self.ask("rows", &arguments).await?, Ok)?)
    }

    /// Up to so many rows of a hash after a field.
    pub(super) async fn rows_after(
        &mut self,
        key: Key,
        beside: Option<Key>,
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<HashRow>, LinkError> {
        match &self.fields_after(key, after, limit).await?[..] {
            [] => Ok(Vec::new()),
            fields => self.rows(key, beside, fields).await,
        }
    }

    async fn receipts(&mut self, of: Key, after: &[u8], limit: usize) -> Result<Vec<Cold>, LinkError> {
        let rows = self.rows_after(of, None, after, limit).await?;
        rows.iter().map(|[key, value, _]| Ok((audit::cold_key(of, key)?, receipt(value)?))).collect()
    }

    /// Writes changes, and then these commands, if the store is still where the last page left it.
    async fn commit(&mut self, changes: &Changes<'_>, last: Cmd) -> Result<(), LinkError> {
        if self.known.run.is_empty() {
            self.known.run = new_run();
        }
        let mut commands = self.server.commands(&self.known, changes, &self.brought, AUTHOR)?;
        commands.push(last);
        self.write(&commands).await?;
        self.known.step(changes);
        Ok(())
    }

    async fn write(&mut self, commands: &[Cmd]) -> Result<(), LinkError> {
        for _ in 0..TRIES_MAX {
            let mut flight = self.server.flight(PROCESS, Mode::Alone);
            flight.start_from(&self.known);
            flight.fly(&[]).await?;
            match self.server.writing.commit(commands.to_vec()).await {
                Ok(_) => return Ok(()),
                // The slot is elsewhere; or somebody came first, as the next look shows.
                Err(LinkError::Moved) => {}
                Err(error) => return Err(error),
            }
        }
        Err(LinkError::Moved)
    }
}

type Cold = (ColdKey, ColdReceipt);

/// The field after which rows with larger numbers are.
fn after_number(no: u64) -> Vec<u8> {
    if no == 0 { Vec::new() } else { no.to_be_bytes().to_vec() }
}

impl Lender for RedisKeeper {
    type Error = LinkError;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, LinkError> {
        let mut flight = Flight { link: &self.server.reading, ..self.server.flight(PROCESS, Mode::Look) };
        flight.start_from(&self.known);
        flight.fly(wants).await
    }
}

impl Keeper for RedisKeeper {
    fn name(&self) -> String {
        self.server.in_words()
    }

    fn told(&self, error: LinkError) -> StoreError {
        match error {
            LinkError::Moved | LinkError::Crowded => StoreError::Io {
                path: self.server.in_words(),
                reason: "somebody works on it, or its server was started anew meanwhile: stop everything that uses \
                         it, then run this again"
                    .to_owned(),
            },
            error => error.at(&self.server.name),
        }
    }

    fn damage(&self, error: &LinkError) -> Option<Fault> {
        match error {
            LinkError::Damaged(damaged) => Some(Fault::new("the store", format!("is damaged: {damaged}"))),
            _ => None,
        }
    }

    async fn version(&mut self) -> Result<Vec<u8>, LinkError> {
        let parts = list(self.ask_at("", "version", &Arguments::default()).await?)?;
        let parts: Vec<Vec<u8>> = parts.map(|part| bytes(Some(part))).collect::<Result<_, Damaged>>()?;
        Ok(parts.join(&b'/'))
    }

    async fn state(&mut self) -> Result<(Numbers, FixtureRows), LinkError> {
        Ok((self.known.numbers, self.known.fixtures.clone()))
    }

    async fn live_after(&mut self, seq: u64, limit: usize) -> Result<Vec<LiveRow>, LinkError> {
        let rows = self.rows_after(Key::Live, None, &after_number(seq), limit).await?;
        Ok(rows.iter().map(|[_, value, _]| live_row(value)).collect::<Result<_, Damaged>>()?)
    }

    async fn groups_after(&mut self, no: u64, limit: usize) -> Result<Vec<(u64, GroupRow, When)>, LinkError> {
        let rows = self.rows_after(Key::Group, None, &after_number(no), limit).await?;
        let rows = rows.iter().map(|[no, value, _]| group(no, value)).collect::<Result<Vec<_>, Damaged>>()?;
        // Whoever sets one's timer next must know what it is.
        self.brought.groups = rows.iter().map(|(no, row, timer)| (*no, (row.clone(), *timer))).collect();
        Ok(rows)
    }

    async fn items_after(&mut self, no: u64, limit: usize) -> Result<Vec<(u64, ItemRow, Payload)>, LinkError> {
        let rows = self.rows_after(Key::Item, Some(Key::ItemBody), &after_number(no), limit).await?;
        let read = |[no, value, body]: HashRow| Ok((seq(&no)?.0, item(&value)?, payload(body)?));
        rows.into_iter().map(read).collect()
    }

    async fn receipts_after(&mut self, key: Option<ColdKey>, limit: usize) -> Result<Vec<Cold>, LinkError> {
        let (of, after) = key.map_or((Key::Ended, Vec::new()), |key| {
            let (of, id) = key_of(&key);
            (of, id.to_vec())
        });
        let found = self.receipts(of, &after, limit).await?;
        match (of, found.is_empty()) {
            (Key::Ended, true) => self.receipts(Key::Seen, &[], limit).await,
            _ => Ok(found),
        }
    }

    async fn mark(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        match self.ask("mark", &Arguments::default()).await.and_then(|mark| Ok(list(mark)?))?.next() {
            None => Ok(None),
            mark => Ok(Some(bytes(mark)?)),
        }
    }

    async fn put(&mut self, changes: &Changes<'_>, epoch: Option<u64>, mark: &[u8]) -> Result<(), LinkError> {
        self.known.numbers.newest_epoch = epoch.unwrap_or(self.known.numbers.newest_epoch);
        let mark = self.server.writing.on("SET", Key::Copying, &Arguments::of([mark]));
        self.commit(changes, mark).await
    }

    async fn clear(&mut self) -> Result<(), LinkError> {
        let mut clear = redis::cmd("UNLINK");
        for key in self.server.writing.keys() {
            clear.arg(key);
        }
        self.write(&[clear]).await?;
        self.brought = Brought::default();
        self.known = Known {
            version: 0,
            run: String::new(),
            format: u64::from(FORMAT),
            needs: 0,
            numbers: Numbers::default(),
            fixtures: FixtureRows::default(),
            heard: Heard::now(0),
        };
        Ok(())
    }

    async fn unmark(&mut self) -> Result<(), LinkError> {
        let unmark = self.server.writing.on("UNLINK", Key::Copying, &Arguments::default());
        self.commit(&Changes::default(), unmark).await
    }

    async fn faults(&mut self) -> Result<Vec<Fault>, LinkError> {
        audit::faults(self).await
    }
}

/// How many fields or members each of these keys has.
pub(super) async fn sizes(keeper: &RedisKeeper, keys: &[Key]) -> Result<Vec<u64>, LinkError> {
    let places = Arguments::of(keys.iter().map(|key| (*key as usize).to_string()));
    let sizes = list(keeper.ask("sizes", &places).await?)?;
    Ok(sizes.map(|size| number(Some(size))).collect::<Result<_, Damaged>>()?)
}
