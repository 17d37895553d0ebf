//! The schema, in numbered steps that run once, under a lock, all that are missing in one
//! transaction with the record of each.
//!
//! A schema may be newer than a program. Each step says which version a program must know to go on once it is
//! done: one that only adds what older programs neither read nor write leaves them at work, so that processes
//! are upgraded one after the other; one that they would break says its own number, and they stop. Programs that
//! are at work are told by the row that every tick locks.
//!
//! Failure modes: a process that dies in the middle leaves the steps undone. Ticks wait while steps are done: a step
//! that takes longer than they wait has them replayed.

use super::wire::{PgError, Wire, param, quoted};
use crate::store::StoreError;
use crate::store::loan::Damaged;

/// A step from one version of the schema to the next.
#[derive(Clone, Copy)]
pub(super) struct Step {
    sql: &'static str,
    /// The oldest version whose programs may go on once this step is done: it must change nothing that they read
    /// or write, nor ask for more than they write.
    needs: i32,
}

/// The steps; a schema's version is how many of them it has seen.
const STEPS: [Step; 2] = [
    Step { sql: include_str!("schema/0001.sql"), needs: 1 },
    // Older programs put receipts by a constraint that is gone.
    Step { sql: include_str!("schema/0002.sql"), needs: 2 },
];
/// The version of the schema that this program knows.
pub(super) const KNOWN: i32 = 2;
const _: () = assert!(STEPS.len() == KNOWN as usize);

/// Which lock migrations of all schemas take.
pub(super) const LOCK: &str = "SELECT pg_advisory_xact_lock(7305517184)";
const STARTED: &str = "SELECT 1 WHERE to_regclass($1) IS NOT NULL";
const VERSION: &str = "SELECT coalesce(max(version), 0)::integer FROM migration";
const RECORD: &str = "INSERT INTO migration (version) VALUES ($1)";
/// Nobody ticks from here on: whoever did would wait for a table while a step waits for its row.
const HOLD_TICKS: &str = "SELECT FROM numbers FOR UPDATE";
/// It counts as a tick: whoever commits without a look, since nobody else ticked, must look.
const NEED: &str = "UPDATE numbers SET needs = greatest(needs, $1), tick = tick + 1";
const NEEDS: &str = "SELECT needs FROM numbers";

/// Brings the schema to this version, if it is older; refuses one that needs a newer program.
pub(super) async fn migrate(wire: &mut Wire, server: &str, schema: &str) -> Result<(), StoreError> {
    migrate_by(&STEPS, wire, server, schema).await
}

async fn migrate_by(steps: &[Step], wire: &mut Wire, server: &str, schema: &str) -> Result<(), StoreError> {
    let fail = |error: PgError| error.at(server);
    step_by_step(steps, wire, schema).await.map_err(fail)?;
    let (known, needs) = (i32::try_from(steps.len()).unwrap_or(i32::MAX), needs(wire).await.map_err(fail)?);
    match needs <= known {
        true => Ok(()),
        false => Err(PgError::Newer { needs, known }.at(&format!("{server}, schema {schema}"))),
    }
}

async fn step_by_step(steps: &[Step], wire: &mut Wire, schema: &str) -> Result<(), PgError> {
    wire.run("BEGIN").await?;
    wire.run(LOCK).await?;
    // Whoever may only use what is there must not be asked to create it.
    if wire.query(STARTED, vec![param(format!("{}.migration", quoted(schema)))]).await?.is_empty() {
        let start = format!(
            "CREATE SCHEMA IF NOT EXISTS {}; CREATE TABLE IF NOT EXISTS migration (version integer PRIMARY KEY)",
            quoted(schema)
        );
        wire.run(&start).await?;
    }
    let version = current(wire).await?;
    for (step, number) in steps.iter().zip(1..).filter(|(_, number)| *number > version) {
        if number > 1 {
            wire.run(HOLD_TICKS).await?;
        }
        wire.run_at_length(step.sql).await?;
        wire.query(RECORD, vec![param(number)]).await?;
        wire.query(NEED, vec![param(step.needs)]).await?;
    }
    wire.run("COMMIT").await
}

pub(super) async fn current(wire: &mut Wire) -> Result<i32, PgError> {
    let rows = wire.query(VERSION, Vec::new()).await?;
    let row = rows.first().ok_or_else(|| Damaged::new("migration", "no version"))?;
    Ok(row.try_get(0)?)
}

pub(super) async fn needs(wire: &mut Wire) -> Result<i32, PgError> {
    let rows = wire.query(NEEDS, Vec::new()).await?;
    let row = rows.first().ok_or_else(|| Damaged::new("numbers", "no row"))?;
    Ok(row.try_get(0)?)
}

#[cfg(all(test, feature = "testkit"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::PostgresStore;
    use super::*;
    use crate::store::op::{Admit, Define, Outcome};
    use crate::store::{Options, ReadExt, StoreExt};
    use crate::testkit::samples;
    use crate::testkit::servers::PostgresServer;

    /// A next version that older programs need not know of.
    const ADDS: Step = Step {
        sql: "ALTER TABLE live ADD COLUMN note text; ALTER TABLE ended ADD COLUMN note text; \
              ALTER TABLE numbers ADD COLUMN notes bigint NOT NULL DEFAULT 0; CREATE INDEX live_note ON live (note); \
              CREATE TABLE note (seq bigint PRIMARY KEY)",
        needs: KNOWN,
    };
    /// And one that they would break.
    const CHANGES: Step = Step { sql: "ALTER TABLE live ALTER COLUMN priority_note TYPE integer", needs: KNOWN + 2 };

    /// The steps of a version to come.
    fn steps(next: &[Step]) -> Vec<Step> {
        [&STEPS, next].concat()
    }

    async fn admits(store: &PostgresStore, numbers: std::ops::Range<u64>) -> Result<(), StoreError> {
        for n in numbers {
            let admit = Admit { cursor: None, requests: vec![samples::final_request(n)] };
            let outcome = loop {
                match store.apply_one(admit.clone()).await {
                    // Nobody is told of a tick that had to wait for too long; it is replayed.
                    Err(StoreError::Unknown) => {}
                    other => break other?,
                }
            };
            assert!(matches!(outcome, Outcome::Applied(_) | Outcome::Duplicate(_)), "{outcome:?}");
        }
        Ok(())
    }

    /// Migrates as a process that starts does: one whose turn did not come in time begins anew.
    async fn migrated_by(steps: &[Step], store: &PostgresStore) -> Result<(), StoreError> {
        loop {
            let mut wire = store.server.connect().await?;
            match migrate_by(steps, &mut wire, "here", "rolling").await {
                Err(StoreError::Unknown) => {}
                other => return other,
            }
        }
    }

    /// Processes of the version before go on while one of the next migrates, and start after it; until a step says
    /// that they cannot.
    #[tokio::test]
    async fn adjacent_versions_work_side_by_side_as_far_as_steps_say() {
        let server = PostgresServer::start(&[PostgresServer::UNSYNCED]).unwrap();
        let open = || PostgresStore::new(&server.url("rolling"), Options::default()).unwrap();
        let older = open();
        older.apply_one(Define { route: samples::route(), policy: samples::policy() }).await.unwrap();
        let newer = open();
        let next = steps(&[ADDS]);
        let (upgraded, worked) = tokio::join!(migrated_by(&next, &newer), admits(&older, 1..60));
        upgraded.unwrap();
        worked.unwrap();
        let another = open();
        admits(&another, 60..70).await.unwrap();
        assert_eq!(older.counts().await.unwrap()[0].requests, 69);
        // The next version starts on it as often as it likes, and does nothing twice.
        migrated_by(&next, &newer).await.unwrap();

        let breaking = Step { sql: "ALTER TABLE note ADD COLUMN text text", ..CHANGES };
        migrated_by(&steps(&[ADDS, breaking]), &newer).await.unwrap();
        let refused = |error: StoreError, version: i32| {
            let told = |found: u32, known: u32| (i64::from(found), i64::from(known));
            let is_told = (i64::from(KNOWN + 2), i64::from(version));
            let newer = matches!(error, StoreError::NewerFormat { found, known, .. } if told(found, known) == is_told);
            assert!(newer && error.to_string().contains("use the newer version"), "{error}");
        };
        refused(admits(&older, 70..71).await.unwrap_err(), KNOWN);
        refused(older.counts().await.unwrap_err(), KNOWN);
        refused(open().start().await.unwrap_err(), KNOWN);
        refused(migrated_by(&next, &newer).await.unwrap_err(), KNOWN + 1);
    }

    /// A store of the first version, with receipts, is brought to this one, and still knows what has ended.
    #[tokio::test]
    async fn a_store_of_the_first_version_goes_on() {
        let server = PostgresServer::start(&[PostgresServer::UNSYNCED]).unwrap();
        let open = || PostgresStore::new(&server.url("first"), Options::default()).unwrap();
        let first = open();
        let mut wire = first.server.connect().await.unwrap();
        migrate_by(&STEPS[..1], &mut wire, "here", "first").await.unwrap();
        let ended = "INSERT INTO ended (id, until, record) SELECT sha256(n::text::bytea), n, '\\x00' \
                     FROM generate_series(1, 3) n";
        wire.run(ended).await.unwrap();
        first.start().await.unwrap();
        assert_eq!(current(&mut wire).await.unwrap(), KNOWN);
        let rows = wire.query("SELECT FROM ended WHERE id = sha256('2')", Vec::new()).await.unwrap();
        assert_eq!(rows.len(), 1);
    }

    /// A step takes as long as it takes, however soon others are to be answered.
    #[tokio::test]
    async fn a_long_step_is_not_cut_off() {
        let server = PostgresServer::start(&[PostgresServer::UNSYNCED]).unwrap();
        let patience = std::time::Duration::from_secs(1);
        let open = || PostgresStore::new(&server.url("long"), Options::default()).unwrap().with_patience(patience);
        let store = open();
        store.start().await.unwrap();
        let mut wire = store.server.connect().await.unwrap();
        let long = Step { sql: "SELECT pg_sleep(1.3)", needs: KNOWN };
        migrate_by(&steps(&[long]), &mut wire, "here", "long").await.unwrap();
        let cut_off = wire.run(long.sql).await.unwrap_err();
        assert!(matches!(cut_off, PgError::Unanswered { .. }) && wire.is_closed(), "{cut_off}");
        open().start().await.unwrap();
    }

    /// A step that fails leaves everything as it was.
    #[tokio::test]
    async fn a_step_that_fails_is_undone() {
        let server = PostgresServer::start(&[PostgresServer::UNSYNCED]).unwrap();
        let store = PostgresStore::new(&server.url("undone"), Options::default()).unwrap();
        store.start().await.unwrap();
        let mut wire = store.server.connect().await.unwrap();
        let failed = migrate_by(&steps(&[ADDS, CHANGES]), &mut wire, "here", "undone").await.unwrap_err();
        assert!(failed.to_string().contains("priority_note"), "{failed}");
        wire.run("ROLLBACK").await.unwrap();
        assert_eq!(current(&mut wire).await.unwrap(), KNOWN);
        store.apply_one(Define { route: samples::route(), policy: samples::policy() }).await.unwrap();
    }
}
