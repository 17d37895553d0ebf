//! Reads: each in a snapshot of its own, on a connection of its own.

use std::sync::PoisonError;

use super::wire::{Call, PgError, Wire, param};
use super::{FIXTURES, NUMBERS, PostgresStore, Seen};
use crate::store::StoreError;
use crate::store::loan::{self, Sight};
use crate::store::query::{Query, Reply};

const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

impl PostgresStore {
    pub(super) async fn answer(&self, query: Query) -> Result<Reply, StoreError> {
        let epoch = self.epoch().await?;
        let _turn = self.readers.acquire().await.map_err(|_closed| StoreError::Closed)?;
        let idle = self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut wire = match idle.filter(|wire| !wire.is_closed()) {
            Some(wire) => wire,
            None => self.server.connect().await?,
        };
        let reply = self.answer_on(&mut wire, epoch, query).await.map_err(|error| error.at(&self.server.name))?;
        self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner).push(wire);
        Ok(reply)
    }

    async fn answer_on(&self, wire: &mut Wire, epoch: u64, query: Query) -> Result<Reply, PgError> {
        let mut seen = Seen { version: -1, ..Seen::default() };
        let calls = vec![Call::new(NUMBERS, Vec::new()), Call::new(FIXTURES, vec![param(seen.version)])];
        let answers = wire.send(SNAPSHOT, calls, "").await?;
        let numbers = self.server.take_in(&answers, &mut seen)?;
        let sight = Sight { epoch, tokens: 0, numbers, fixtures: &seen.fixtures };
        let reply = loan::read(wire, self.options, &sight, query).await?;
        wire.run("COMMIT").await?;
        Ok(reply)
    }
}
