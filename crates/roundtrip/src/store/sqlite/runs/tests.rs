#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const KEEP_ALL: &dyn Fn(&Entry) -> bool = &|_| true;
const FOREVER: u64 = u64::MAX;

fn store() -> (Connection, Runs) {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(SCHEMA).unwrap();
    let runs = Runs::open(&conn).unwrap();
    (conn, runs)
}

/// Spreads numbers over the key space as a hash would.
fn key(number: u64) -> EntryKey {
    let mut key = [1; 33];
    key[1..9].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[25..].copy_from_slice(&number.to_be_bytes());
    key
}

fn entry(number: u64, value: &[u8], until: u64) -> Entry {
    Entry { key: key(number), value: value.to_vec(), until }
}

fn value_of(conn: &Connection, runs: &Runs, key: &EntryKey) -> Option<Vec<u8>> {
    runs.find(conn, key).unwrap().map(|entry| entry.value)
}

/// Steps until nothing is left and returns how many steps that took.
fn settle(conn: &Connection, runs: &mut Runs, now: u64, keep: &dyn Fn(&Entry) -> bool) -> usize {
    (1..).find(|_| runs.step(conn, 16, now, keep).unwrap() == Progress::Idle).unwrap()
}

fn rows(conn: &Connection, table: &str) -> i64 {
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

/// Eight runs of a hundred entries, the one in run `r` at place `i` being number `100 r + i`.
fn eight_runs() -> (Connection, Runs) {
    let (conn, mut runs) = store();
    for run in 0..8 {
        let numbers = run * 100..(run + 1) * 100;
        let batch = numbers.map(|number| entry(number, &[9; 40], 1_000 + number)).collect();
        runs.spill(&conn, batch).unwrap();
    }
    (conn, runs)
}

#[test]
fn finds_what_was_spilled_and_nothing_else() {
    let (conn, mut runs) = store();
    let batch: Vec<Entry> = (0..40_000)
        .map(|number| entry(number, &number.to_be_bytes(), number))
        .chain([entry(50_000, &[], 0), entry(50_001, &[0xff; 255], FOREVER)])
        .collect();
    runs.spill(&conn, batch.clone()).unwrap();
    assert!(runs.runs[0].segments.len() > 1);
    for expected in &batch {
        assert_eq!(runs.find(&conn, &expected.key).unwrap().as_ref(), Some(expected));
    }
    for number in 60_000..100_000 {
        assert_eq!(runs.find(&conn, &key(number)).unwrap(), None);
    }
    assert_eq!(runs.find(&conn, &[0; 33]).unwrap(), None);
    assert_eq!(runs.find(&conn, &[0xff; 33]).unwrap(), None);
    assert_eq!((runs.len(), runs.run_count()), (40_002, 1));
}

#[test]
fn every_block_fits_a_page() {
    let (conn, mut runs) = store();
    runs.spill(&conn, (0..5_000).map(|number| entry(number, &[7; 23], FOREVER)).collect()).unwrap();
    let (longest, shortest): (usize, usize) = conn
        .query_row("SELECT max(length(data)), min(length(data)) FROM receipt_block", [], |row| {
            Ok((row.get::<_, u32>(0)? as usize, row.get::<_, u32>(1)? as usize))
        })
        .unwrap();
    assert!(longest <= block::BLOCK_BYTES && longest > block::BLOCK_BYTES - 60);
    assert!(shortest > 0);
    let pages: i64 =
        conn.query_row("SELECT count(*) FROM pragma_page_count, receipt_block", [], |row| row.get(0)).unwrap();
    let all: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    // A page per block, one above them, and a handful for the other tables and the filter.
    assert!(all < pages + 15, "{all} pages for {pages} blocks");
}

#[test]
fn an_empty_spill_leaves_no_trace() {
    let (conn, mut runs) = store();
    runs.spill(&conn, Vec::new()).unwrap();
    assert_eq!((runs.len(), runs.run_count(), rows(&conn, "receipt_run")), (0, 0, 0));
    assert_eq!(runs.step(&conn, 64, 0, KEEP_ALL).unwrap(), Progress::Idle);
}

#[test]
fn refuses_a_value_too_long() {
    let (conn, mut runs) = store();
    assert!(runs.spill(&conn, vec![entry(1, &[0; 256], 0)]).is_err());
}

#[test]
fn the_newest_wins_within_a_batch_across_runs_and_after_merges() {
    let (conn, mut runs) = store();
    runs.spill(&conn, vec![entry(1, b"older", 0), entry(1, b"newer", 0)]).unwrap();
    assert_eq!(value_of(&conn, &runs, &key(1)).unwrap(), b"newer");
    for round in 0..20_u8 {
        runs.spill(&conn, vec![entry(1, &[round], FOREVER), entry(2 + u64::from(round), &[], 0)]).unwrap();
        assert_eq!(value_of(&conn, &runs, &key(1)).unwrap(), [round]);
        settle(&conn, &mut runs, 0, KEEP_ALL);
        assert_eq!(value_of(&conn, &runs, &key(1)).unwrap(), [round]);
    }
    assert!(runs.run_count() < 8);
}

#[test]
fn what_is_spilled_before_or_during_a_merge_is_newer_than_its_output() {
    let (conn, mut runs) = eight_runs();
    // A ninth run, which the merge leaves out though its id is below that of the output.
    let ninth = vec![entry(5, b"new", FOREVER), entry(6, b"new", FOREVER)];
    runs.spill(&conn, ninth).unwrap();
    assert_eq!(runs.step(&conn, 9, 0, KEEP_ALL).unwrap(), Progress::More);
    assert!(!runs.merges.is_empty());
    runs.spill(&conn, vec![entry(5, b"newer", FOREVER)]).unwrap();
    settle(&conn, &mut runs, 0, KEEP_ALL);
    assert_eq!(runs.run_count(), 3);
    assert_eq!(value_of(&conn, &runs, &key(5)).unwrap(), b"newer");
    assert_eq!(value_of(&conn, &runs, &key(6)).unwrap(), b"new");
    let runs = Runs::open(&conn).unwrap();
    assert_eq!(value_of(&conn, &runs, &key(5)).unwrap(), b"newer");
    assert_eq!(value_of(&conn, &runs, &key(6)).unwrap(), b"new");
}

#[test]
fn a_merge_drops_what_expired_or_is_not_kept_and_deletes_its_sources() {
    let (conn, mut runs) = eight_runs();
    let now = 1_250;
    let kept = |number: u64| 1_000 + number >= now && !number.is_multiple_of(3);
    let refused: BTreeSet<EntryKey> = (0..800).step_by(3).map(key).collect();
    settle(&conn, &mut runs, now, &|entry| !refused.contains(&entry.key));
    // Two of the runs had expired as a whole, which left too few to merge; a third was half
    // expired and was, with what was not kept, worth rewriting.
    for _ in 0..6 {
        settle(&conn, &mut runs, now, &|entry| !refused.contains(&entry.key));
    }
    let left = 500 + (250..300).filter(|number| kept(*number)).count() as u64;
    assert_eq!((runs.run_count(), runs.len()), (6, left));
    for number in [801, 802] {
        runs.spill(&conn, vec![entry(number, &[], FOREVER)]).unwrap();
    }
    settle(&conn, &mut runs, now, &|entry| !refused.contains(&entry.key));
    assert_eq!((runs.run_count(), rows(&conn, "receipt_run")), (1, 1));
    for number in 0..803 {
        let expected = number > 800 || number < 800 && kept(number);
        assert_eq!(runs.find(&conn, &key(number)).unwrap().is_some(), expected, "{number}");
    }
    assert_eq!(rows(&conn, "receipt_filter"), 1);
    assert_eq!(rows(&conn, "receipt_block"), runs.runs[0].end_block() - runs.runs[0].first_block());
}

#[test]
fn a_merge_that_keeps_nothing_leaves_nothing() {
    let (conn, mut runs) = eight_runs();
    settle(&conn, &mut runs, 0, &|_| false);
    assert_eq!((runs.run_count(), runs.len()), (0, 0));
    for table in ["receipt_run", "receipt_filter", "receipt_block"] {
        assert_eq!(rows(&conn, table), 0, "{table}");
    }
}

#[test]
fn runs_expire_as_a_whole_unless_a_merge_reads_them() {
    let (conn, mut runs) = eight_runs();
    runs.step(&conn, 9, 0, KEEP_ALL).unwrap();
    assert!(!runs.merges.is_empty());
    runs.step(&conn, 1, 5_000, KEEP_ALL).unwrap();
    assert_eq!(runs.run_count(), 8);
    settle(&conn, &mut runs, 5_000, KEEP_ALL);
    assert_eq!((runs.run_count(), rows(&conn, "receipt_block")), (0, 0));
}

#[test]
fn a_run_that_is_never_merged_still_shrinks() {
    let (conn, mut runs) = store();
    let batch = |from: u64| (from..from + 2_000).map(|number| entry(number, &[3; 30], FOREVER));
    runs.spill(&conn, batch(0).collect()).unwrap();
    runs.spill(&conn, batch(2_000).collect()).unwrap();
    // Of the first run a tenth is to be kept, of the second most.
    let refused: BTreeSet<EntryKey> =
        (0..2_000).filter(|number| number % 10 != 0).chain((2_000..4_000).step_by(3)).map(key).collect();
    for _ in 0..3 {
        settle(&conn, &mut runs, 0, &|entry| !refused.contains(&entry.key));
    }
    let entries: Vec<u64> = runs.runs.iter().map(|run| run.entries).collect();
    assert_eq!(entries, [200, 2_000]);
    assert_eq!((runs.runs[0].tier, runs.runs[0].age), (0, 1));
    assert!((0..2_000).step_by(10).all(|number| runs.find(&conn, &key(number)).unwrap().is_some()));
}

#[test]
fn a_small_merge_does_not_wait_for_a_large_one() {
    let (conn, mut runs) = store();
    let mut numbers = 0..;
    let mut spill = |runs: &mut Runs, size: usize| {
        let batch = numbers.by_ref().take(size).chain([0]);
        runs.spill(&conn, batch.map(|number| entry(number, &[1; 50], FOREVER)).collect()).unwrap();
    };
    for _ in 0..8 {
        for _ in 0..8 {
            spill(&mut runs, 300);
        }
        // Leaves the merge of the eight outputs under way, the last time.
        while runs.runs.iter().any(|run| run.tier == 0) {
            runs.step(&conn, 8, 0, KEEP_ALL).unwrap();
        }
    }
    while runs.merges.is_empty() {
        runs.step(&conn, 4, 0, KEEP_ALL).unwrap();
    }
    assert_eq!((runs.run_count(), runs.merges[0].source_tier), (8, 1));
    for _ in 0..8 {
        spill(&mut runs, 300);
    }
    runs.step(&conn, 4, 0, KEEP_ALL).unwrap();
    assert_eq!(runs.merges.len(), 2);
    while runs.run_count() > 9 {
        runs.step(&conn, 4, 0, KEEP_ALL).unwrap();
    }
    assert_eq!(runs.merges.len(), 1);
    let mut reopened = Runs::open(&conn).unwrap();
    for runs in [&mut runs, &mut reopened] {
        assert_eq!(runs.run_count(), 9);
    }
    settle(&conn, &mut reopened, 0, KEEP_ALL);
    assert_eq!((reopened.run_count(), reopened.len()), (2, 72 * 300 + 1));
    assert_eq!(rows(&conn, "receipt_run"), 2);
}

#[test]
fn an_unfinished_merge_is_discarded_and_begun_again() {
    let (conn, mut runs) = store();
    for run in 0..8 {
        let batch = (run * 5_000..(run + 1) * 5_000).map(|number| entry(number, &[9; 90], FOREVER));
        runs.spill(&conn, batch.collect()).unwrap();
    }
    let blocks = rows(&conn, "receipt_block");
    // Far enough for the output to have closed a segment of its own.
    while rows(&conn, "receipt_filter") == 8 {
        assert_eq!(runs.step(&conn, 64, 0, KEEP_ALL).unwrap(), Progress::More);
    }
    assert_eq!(runs.run_count(), 8);
    let unfinished = rows(&conn, "receipt_block") - blocks;
    assert!(unfinished > 100);

    let mut runs = Runs::open(&conn).unwrap();
    assert_eq!((runs.run_count(), runs.len(), runs.retired.len()), (8, 40_000, 1));
    assert!((0..40_000).step_by(7).all(|number| runs.find(&conn, &key(number)).unwrap().is_some()));
    let next_id = runs.next_id;
    assert_eq!(runs.step(&conn, 10, 0, KEEP_ALL).unwrap(), Progress::More);
    assert_eq!(rows(&conn, "receipt_block"), blocks + unfinished - 10);
    settle(&conn, &mut runs, 0, KEEP_ALL);
    assert_eq!((runs.run_count(), runs.len(), runs.runs[0].id), (1, 40_000, next_id));
    assert!((0..40_000).all(|number| runs.find(&conn, &key(number)).unwrap().is_some()));
}

#[test]
fn tells_keys_apart_that_share_a_long_prefix() {
    let (conn, mut runs) = store();
    let alike = |number: u32| {
        let mut key = [3; 33];
        key[29..].copy_from_slice(&number.to_be_bytes());
        key
    };
    // Neighbours on both sides, so that the fences are not all alike.
    let others =
        (0..500).map(|number| entry(number, &[1; 30], 1)).chain([Entry { key: [4; 33], value: vec![], until: 1 }]);
    let batch =
        (0..4_000).map(|number| Entry { key: alike(number * 2), value: vec![5; 200], until: u64::from(number) });
    runs.spill(&conn, others.chain(batch).collect()).unwrap();
    for number in 0..8_002 {
        let found = runs.find(&conn, &alike(number)).unwrap().map(|entry| entry.until);
        let expected = (number.is_multiple_of(2) && number < 8_000).then_some(u64::from(number / 2));
        assert_eq!(found, expected);
        // Past the filter too the absent ones must be absent.
        let past_filter = runs.runs[0].segments[0].find(&conn, &alike(number)).unwrap();
        assert_eq!(past_filter.map(|entry| entry.until), expected);
    }
    assert!((0..500).all(|number| runs.find(&conn, &key(number)).unwrap().is_some()));
    assert!(runs.find(&conn, &[4; 33]).unwrap().is_some());
}

#[test]
fn a_step_stays_near_its_budget() {
    let (conn, mut runs) = store();
    for run in 0..8 {
        let batch = (run * 9_000..(run + 1) * 9_000).map(|number| entry(number, &[9; 60], FOREVER));
        runs.spill(&conn, batch.collect()).unwrap();
    }
    let mut before = rows(&conn, "receipt_block");
    while runs.step(&conn, 32, 0, KEEP_ALL).unwrap() == Progress::More {
        let after = rows(&conn, "receipt_block");
        assert!(after.abs_diff(before) <= 33, "{before} to {after}");
        before = after;
    }
    assert_eq!(runs.run_count(), 1);
}

#[test]
fn tiers_keep_the_number_of_runs_small() {
    let (conn, mut runs) = store();
    for number in 0..600 {
        runs.spill(&conn, vec![entry(number, &[], FOREVER)]).unwrap();
        settle(&conn, &mut runs, 0, KEEP_ALL);
    }
    // 600 is 1130 in base eight.
    assert_eq!((runs.run_count(), runs.len()), (1 + 1 + 3, 600));
    let tiers: Vec<u32> = runs.runs.iter().map(|run| run.tier).collect();
    assert_eq!(tiers, [3, 2, 1, 1, 1]);
    assert!(runs.memory_bytes() > 5 * 64 && runs.memory_bytes() < 2_000);
}

#[test]
fn runs_too_large_to_merge_stay_and_do_not_hinder_others() {
    let (_, mut runs) = store();
    let run = |id, entries| Run { id, age: id, tier: 0, entries, until_max: 0, segments: vec![] };
    runs.runs = (0..8).map(|id| run(id, RUN_ENTRIES_MAX / 8)).collect();
    assert_eq!(runs.next_merge(), Some(0..8));
    runs.runs[2].entries += 1;
    assert_eq!(runs.next_merge(), None);
    runs.runs.extend((8..11).map(|id| run(id, 1)));
    assert_eq!(runs.next_merge(), Some(1..9));
    runs.runs.insert(7, Run { tier: 1, ..run(11, 1) });
    assert_eq!(runs.next_merge(), None);
}

#[test]
fn damage_is_an_error_and_never_an_absence() {
    let damage = [
        ("DELETE FROM receipt_filter", true),
        ("UPDATE receipt_filter SET filter = x'00'", true),
        ("UPDATE receipt_filter SET fences = x'00'", true),
        ("UPDATE receipt_filter SET first = x'00'", true),
        ("DELETE FROM receipt_block", false),
        ("UPDATE receipt_block SET data = substr(data, 1, 50)", false),
        ("UPDATE receipt_block SET data = x'22'", false),
        ("UPDATE receipt_block SET data = x''", false),
    ];
    for (sql, at_open) in damage {
        let (conn, mut runs) = store();
        runs.spill(&conn, (0..50).map(|number| entry(number, &[7; 9], 0)).collect()).unwrap();
        conn.execute(sql, []).unwrap();
        match Runs::open(&conn) {
            Ok(runs) if !at_open => {
                let last = (0..50).map(key).max().unwrap();
                assert!(runs.find(&conn, &last).is_err(), "{sql}");
            }
            result => assert!(at_open && result.is_err(), "{sql}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Spill(Vec<(u8, u8)>),
    Step { blocks: usize, later: u64 },
    Commit,
    Reopen,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let spill = prop::collection::vec((any::<u8>(), any::<u8>()), 0..40).prop_map(Action::Spill);
    let step = (0..40_usize, 0..3_u64).prop_map(|(blocks, later)| Action::Step { blocks, later });
    let action = prop_oneof![
        5 => spill,
        6 => step,
        2 => Just(Action::Commit),
        1 => Just(Action::Reopen),
    ];
    prop::collection::vec(action, 1..120)
}

/// A third of the model's keys share all but their last byte.
fn model_key(number: u8) -> EntryKey {
    if number.is_multiple_of(3) {
        let mut key = [2; 33];
        key[32] = number;
        return key;
    }
    key(number.into())
}

/// What `keep` says in the model.
fn is_kept(key: &EntryKey) -> bool {
    !key[32].is_multiple_of(5)
}

#[derive(Clone, Default)]
struct Model {
    newest: BTreeMap<EntryKey, Entry>,
    now: u64,
    writes: u64,
}

impl Model {
    fn next(&mut self, number: u8, size: u8) -> Entry {
        self.writes += 1;
        let mut value = self.writes.to_be_bytes().to_vec();
        value.resize(usize::from(size.max(8)), size);
        // A key written later lives longer, as the contract asks.
        let until = if number < 100 { FOREVER } else { self.now + u64::from(number % 8) };
        let entry = Entry { key: model_key(number), value, until };
        self.newest.insert(entry.key, entry.clone());
        entry
    }

    fn check(&self, conn: &Connection, runs: &Runs) {
        for number in 0..=u8::MAX {
            let key = model_key(number);
            let found = runs.find(conn, &key).unwrap();
            let newest = self.newest.get(&key);
            let droppable = |entry: &Entry| entry.until < self.now || !is_kept(&entry.key);
            match newest {
                Some(newest) if !droppable(newest) => assert_eq!(found.as_ref(), Some(newest)),
                // It may be there or not, but then nothing may be that has yet to live.
                Some(_) => assert!(found.iter().all(droppable)),
                None => assert_eq!(found, None),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    #[test]
    fn behaves_like_a_map(actions in actions()) {
        let (conn, mut runs) = store();
        let mut model = Model::default();
        let mut committed = model.clone();
        conn.execute_batch("BEGIN").unwrap();
        for action in actions {
            match action {
                Action::Spill(batch) => {
                    let batch = batch.iter().map(|(number, size)| model.next(*number, *size));
                    runs.spill(&conn, batch.collect()).unwrap();
                }
                Action::Step { blocks, later } => {
                    model.now += later;
                    runs.step(&conn, blocks, model.now, &|entry| is_kept(&entry.key)).unwrap();
                }
                Action::Commit => {
                    conn.execute_batch("COMMIT; BEGIN").unwrap();
                    committed = model.clone();
                }
                Action::Reopen => {
                    conn.execute_batch("ROLLBACK; BEGIN").unwrap();
                    runs = Runs::open(&conn).unwrap();
                    model = committed.clone();
                }
            }
            model.check(&conn, &runs);
        }
        conn.execute_batch("COMMIT").unwrap();
        settle(&conn, &mut runs, model.now, &|entry| is_kept(&entry.key));
        model.check(&conn, &runs);
        prop_assert!(runs.run_count() < 8 * 4);
        let reopened = Runs::open(&conn).unwrap();
        model.check(&conn, &reopened);
        prop_assert_eq!(reopened.len(), runs.len());
        // Nothing is left behind that no run owns.
        let blocks: i64 = runs.runs.iter().map(|run| run.end_block() - run.first_block()).sum();
        prop_assert_eq!(rows(&conn, "receipt_block"), blocks);
        prop_assert_eq!(rows(&conn, "receipt_run"), i64::try_from(runs.run_count()).unwrap());
    }
}

/// Keys that are in several runs, in segments and blocks of their own, page by page.
#[test]
fn all_entries_come_by_pages_in_the_order_of_keys_and_the_newest_of_each() {
    let (conn, mut runs) = store();
    let mut expected = BTreeMap::new();
    for (numbers, value) in [(0..40_000, b"older"), (100..300, b"newer"), (39_900..40_100, b"third")] {
        let batch: Vec<Entry> = numbers.map(|number| entry(number, value, FOREVER)).collect();
        expected.extend(batch.iter().map(|entry| (entry.key, entry.value.clone())));
        runs.spill(&conn, batch).unwrap();
    }
    for page in [1_000, 40_100, 50_000] {
        let (mut found, mut after) = (Vec::new(), [0; 33]);
        loop {
            let entries = runs.after(&conn, &after, page).unwrap();
            let Some(last) = entries.last() else { break };
            assert!(entries.len() <= page);
            after = last.key;
            found.extend(entries.into_iter().map(|entry| (entry.key, entry.value)));
        }
        assert!(found.is_sorted_by_key(|(key, _)| *key), "pages of {page}");
        assert!(found.into_iter().eq(expected.clone()), "pages of {page}");
    }
}
