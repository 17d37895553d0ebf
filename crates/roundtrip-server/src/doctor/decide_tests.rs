#![allow(clippy::unwrap_used, reason = "tests")]
use std::collections::BTreeMap;

use alloy::consensus::{SignableTransaction, TxEip1559};
use alloy::eips::eip2718::Encodable2718;
use alloy::network::TxSignerSync;
use alloy::primitives::Address;
use roundtrip::sender::{AttemptKind, SignedAttempt};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{Count, ParcelView, RouteView};
use roundtrip::store::vitals::TableVitals;
use roundtrip::words::{AttemptHash, Destination, LaneName, Nonce, RouteName, UnixMs};

use super::super::facts::Unreached;
use super::*;

/// Findings by level and a part of what they say; a finding that is not well says what to do.
fn check(findings: &[Finding], expected: &[(Level, &str)]) {
    assert_eq!(findings.len(), expected.len(), "{findings:?}");
    for (finding, (level, part)) in findings.iter().zip(expected) {
        let all = format!("{} {} {}", finding.about, finding.found, finding.to_do.clone().unwrap_or_default());
        assert!(finding.level == *level && all.contains(part), "{finding:?}, and not {level:?} {part:?}");
        assert_eq!(finding.to_do.is_none(), *level == Level::Well, "{finding:?}");
    }
}

fn settings(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_file_is_well_unless_its_log_its_size_or_its_disk_is_not() {
    let file = |free_bytes, log_bytes| SqliteVitals {
        path: "a.db".to_owned(),
        bytes: 300 * MIB,
        free_bytes,
        log_bytes,
        journal_mode: "wal".to_owned(),
    };
    let disk = |free_bytes| Some(Disk { free_bytes, bytes: 1000 * MIB });
    check(&sqlite(&file(0, 0), disk(500 * MIB)), &[(Level::Well, "300 MiB")]);
    check(&sqlite(&file(200 * MIB, 0), None), &[(Level::Look, "store copy")]);
    check(&sqlite(&file(0, 600 * MIB), None), &[(Level::Look, "its log has 600 MiB")]);
    check(&sqlite(&file(0, 0), disk(50 * MIB)), &[(Level::Look, "50 MiB of 1000 MiB are left")]);
    check(&sqlite(&file(0, 0), disk(5 * MIB)), &[(Level::Bad, "are left on its disk")]);
    let large = Some(Disk { free_bytes: 11 << 30, bytes: 1 << 40 });
    check(&sqlite(&file(0, 0), large), &[(Level::Well, "300 MiB")]);
    let other = SqliteVitals { journal_mode: "delete".to_owned(), ..file(0, 0) };
    check(&sqlite(&other, None), &[(Level::Bad, "journal mode is delete")]);
}

#[test]
fn a_postgres_server_must_sync_and_clear_up() {
    let good =
        settings(&[("fsync", "on"), ("synchronous_commit", "on"), ("autovacuum", "on"), ("max_connections", "100")]);
    let server = PostgresVitals { settings: good, connections: 8, ..PostgresVitals::default() };
    check(&postgres(&server), &[(Level::Well, "8 connections")]);
    let off = settings(&[
        ("fsync", "off"),
        ("synchronous_commit", "off"),
        ("full_page_writes", "off"),
        ("autovacuum", "off"),
    ]);
    let bad = [Level::Bad, Level::Bad, Level::Bad, Level::Look];
    let names = ["fsync", "synchronous_commit", "full_page_writes", "autovacuum"];
    let expected: Vec<_> = bad.into_iter().zip(names).collect();
    check(&postgres(&PostgresVitals { settings: off, ..PostgresVitals::default() }), &expected);
    let table = |rows, dead_rows| TableVitals { name: "live".to_owned(), rows, dead_rows, bytes: MIB };
    let with = |tables| PostgresVitals { tables, ..server.clone() };
    check(&postgres(&with(vec![table(10, 19_000)])), &[(Level::Well, "1 MiB")]);
    check(&postgres(&with(vec![table(90_000, 30_000)])), &[(Level::Well, "1 MiB")]);
    check(&postgres(&with(vec![table(10, 30_000)])), &[(Level::Look, "VACUUM")]);
    let held = PostgresVitals { oldest_snapshot_s: 900, idle_slots: 1, connections: 85, ..server };
    check(&postgres(&held), &[(Level::Look, "15 min"), (Level::Look, "pg_drop"), (Level::Look, "85 of 100")]);
}

#[test]
fn a_redis_server_must_keep_what_it_acknowledges() {
    let server = |only, sync, policy| RedisVitals {
        settings: settings(&[("appendonly", only), ("appendfsync", sync), ("maxmemory-policy", policy)]),
        log_is_written: true,
        ..RedisVitals::default()
    };
    let good = server("yes", "always", "noeviction");
    check(&redis(&good), &[(Level::Well, "0 replicas")]);
    check(&redis(&server("yes", "everysec", "noeviction")), &[(Level::Look, "appendfsync")]);
    check(&redis(&server("no", "always", "allkeys-lru")), &[(Level::Bad, "appendonly"), (Level::Bad, "noeviction")]);
    check(&redis(&RedisVitals { used_bytes: 85, max_bytes: 100, ..good.clone() }), &[(Level::Look, "maxmemory")]);
    check(&redis(&RedisVitals { used_bytes: 99, max_bytes: 100, ..good.clone() }), &[(Level::Bad, "maxmemory")]);
    check(&redis(&RedisVitals { log_is_written: false, ..good }), &[(Level::Bad, "its log could not be written")]);
    let silent = RedisVitals { log_is_written: true, ..RedisVitals::default() };
    check(&redis(&silent), &[(Level::Look, "CONFIG GET")]);
}

#[test]
fn a_route_is_full_paused_or_waits_for_somebody() {
    let view = |paused| RouteView {
        name: RouteName::new("price").unwrap(),
        policy: RoutePolicy { capacity: 100, ..RoutePolicy::default() },
        paused,
    };
    let count = |state, requests| Count { route: view(false).name, state, requests, oldest_at: UnixMs(1_000_000) };
    let facts = |paused, counts: &[Count]| RouteFacts {
        view: view(paused),
        counts: counts.into(),
        unreached: Unreached::default(),
        undelivered: None,
    };
    let found = |paused, counts: &[Count], now| route(&facts(paused, counts), false, now);
    check(&found(false, &[], 0), &[(Level::Well, "0 of 100")]);
    check(&found(false, &[count(StateKind::Leased, 85)], 0), &[(Level::Look, "85 of 100")]);
    check(&found(false, &[count(StateKind::Leased, 100)], 0), &[(Level::Bad, "it is full")]);
    check(&found(true, &[], 0), &[(Level::Look, "routes resume price")]);
    check(&found(false, &[count(StateKind::Dead, 3)], 0), &[(Level::Look, "dead list --route price")]);
    check(&found(false, &[count(StateKind::Queued, 3)], 1_500_000), &[(Level::Well, "3 of 100")]);
    check(&found(false, &[count(StateKind::Queued, 3)], 1_700_000), &[(Level::Look, "11 min ago")]);
    check(&found(false, &[count(StateKind::Assigned, 1)], 1_700_000), &[(Level::Look, "a lane is stuck")]);
    let unreached = Unreached { requests: 3, why: "nobody is there".to_owned() };
    let waiting = RouteFacts { unreached, ..facts(false, &[]) };
    check(
        &route(&waiting, false, 0),
        &[(Level::Look, "3 requests wait for what their worker could not reach: nobody")],
    );
    check(&route(&waiting, true, 0), &[(Level::Well, "0 of 100")]);
}

#[test]
fn answers_that_a_receiver_does_not_take_are_told() {
    let name = RouteName::new("price").unwrap();
    let ready = Count { route: name.clone(), state: StateKind::Ready, requests: 7, oldest_at: UnixMs(0) };
    let destination = Some(Destination::new("hooks").unwrap());
    let policy = RoutePolicy { capacity: 100, destination, ..RoutePolicy::default() };
    let facts = |undelivered| RouteFacts {
        view: RouteView { name: name.clone(), policy: policy.clone(), paused: false },
        counts: vec![ready.clone()],
        unreached: Unreached::default(),
        undelivered,
    };
    for (undelivered, now, expected) in [
        (None, 9_000_000, (Level::Well, "7 of 100")),
        (Some(UnixMs(1_000_000)), 1_300_000, (Level::Well, "7 of 100")),
        (
            Some(UnixMs(1_000_000)),
            1_301_000,
            (Level::Look, "7 answers are not delivered, the oldest has waited for 5 min"),
        ),
        (Some(UnixMs(1_000_000)), 1_301_000, (Level::Look, "see that hooks takes them")),
    ] {
        check(&route(&facts(undelivered), false, now), &[expected]);
    }
}

#[test]
fn a_tool_is_there_or_its_requests_wait() {
    let tool = |found| tool(&ToolFacts { route: "price".to_owned(), found }, 61_000);
    check(&tool(ToolFound::Called(None)), &[(Level::Well, "tool of route price")]);
    let away = Away { since: UnixMs(1_000), why: "it answered 500".to_owned() };
    let told = "it cannot be asked, for 60 s now: it answered 500; requests wait for it, at no cost see that it runs";
    check(&tool(ToolFound::Called(Some(away))), &[(Level::Look, told)]);
    // Where another process calls it, it is asked.
    check(&tool(ToolFound::Asked(Ok(()))), &[(Level::Well, "tool of route price")]);
    let told = "it was asked from here, and cannot be: refused; another process calls it see that it runs";
    check(&tool(ToolFound::Asked(Err("refused".to_owned()))), &[(Level::Look, told)]);
}

#[test]
fn a_lane_is_held_up_by_its_status_a_gap_or_a_fee() {
    let parcel = |nonce, attempts: u8| ParcelView {
        nonce: Nonce(nonce),
        deliveries: Vec::new(),
        attempts: (0..attempts)
            .map(|n| SignedAttempt {
                hash: AttemptHash([n; 32]),
                kind: AttemptKind::Carry,
                bytes: Default::default(),
                fee: None,
            })
            .collect(),
        stage: ParcelStage::Assigned,
        block: None,
        cancel: None,
        route: None,
    };
    let view = |status, parcels: Vec<ParcelView>| LaneView {
        name: LaneName::new("first").unwrap(),
        destination: Destination::new("board").unwrap(),
        window: 16,
        next: Nonce(7),
        settled: Nonce(5),
        status,
        under_way: parcels.len(),
        parcels,
    };
    let facts = |view| LaneFacts { view, at_cap: None, fee_cap: None, chain: None };
    let lane = |view| super::lane(&facts(view), None);
    let both = || vec![parcel(5, 1), parcel(6, 1)];
    check(&lane(view(LaneStatus::Active, both())), &[(Level::Well, "2 of 16 under way")]);
    check(&lane(view(LaneStatus::Stopped, both())), &[(Level::Bad, "lanes rebuild first")]);
    let reason = || Box::<str>::from("no funds");
    check(&lane(view(LaneStatus::Unfunded { reason: reason() }, both())), &[(Level::Bad, "send funds")]);
    check(&lane(view(LaneStatus::Paused { reason: reason() }, both())), &[(Level::Look, "lanes resume first")]);
    let until = UnixMs(9);
    check(&lane(view(LaneStatus::Quarantined { until }, both())), &[(Level::Look, "quarantine")]);
    check(&lane(view(LaneStatus::Active, vec![parcel(6, 1)])), &[(Level::Look, "slot 5 carries nothing")]);
    let stuck = vec![parcel(5, 3), parcel(6, 1)];
    check(&lane(view(LaneStatus::Active, stuck.clone())), &[(Level::Look, "lanes cancel first --nonce 5")]);
    let capped = LaneFacts { at_cap: Some(Nonce(5)), ..facts(view(LaneStatus::Active, stuck)) };
    check(&super::lane(&capped, None), &[(Level::Bad, "slot 5 pays all that it may")]);

    // Whoever does not send on it knows it by what was signed, the cap, and what the chain asks for.
    let paying = |most| {
        let attempts = vec![signed(most / 2), signed(most)];
        let parcels = vec![ParcelView { attempts, ..parcel(5, 0) }, parcel(6, 1)];
        LaneFacts { fee_cap: Some(1_000), ..facts(view(LaneStatus::Active, parcels)) }
    };
    for (most, base_fee, is_at_cap) in [
        (1_000, Some(1_001), true),
        (950, Some(951), true),
        (1_000, Some(1_000), false),
        // A dearer one is within the cap, and its sender sees to that.
        (900, Some(5_000), false),
        (1_000, None, false),
    ] {
        let expected = is_at_cap.then_some(Nonce(5));
        assert_eq!(super::at_cap(&paying(most), base_fee), expected, "{most} of 1000 where {base_fee:?} is asked for");
    }
    assert_eq!(super::at_cap(&LaneFacts { fee_cap: None, ..paying(1_000) }, Some(5_000)), None, "no cap is known");
}

/// A transaction that pays so much for a unit of gas.
fn signed(most: u128) -> SignedAttempt {
    let signer = alloy::signers::local::PrivateKeySigner::from_slice(&[1; 32]).unwrap();
    let mut transaction =
        TxEip1559 { max_fee_per_gas: most, to: Address::repeat_byte(1).into(), ..TxEip1559::default() };
    let signature = signer.sign_transaction_sync(&mut transaction).unwrap();
    let bytes = transaction.into_signed(signature).encoded_2718();
    SignedAttempt { hash: AttemptHash([9; 32]), kind: AttemptKind::Carry, bytes: bytes.into(), fee: Some(most) }
}

#[test]
fn a_chains_price_is_what_its_furthest_node_says() {
    let view = LaneView {
        name: LaneName::new("first").unwrap(),
        destination: Destination::new("board").unwrap(),
        window: 16,
        next: Nonce(0),
        settled: Nonce(0),
        status: LaneStatus::Active,
        under_way: 0,
        parcels: Vec::new(),
    };
    let lane = LaneFacts { view, at_cap: None, fee_cap: Some(1), chain: Some("main".to_owned()) };
    let node = |chain: &str, chain_id, head, base_fee| NodeFacts {
        chain: chain.to_owned(),
        chain_id: 1,
        node: "a".to_owned(),
        says: Ok(NodeSays { chain_id, head, base_fee: Some(base_fee) }),
    };
    let nodes = [node("main", 1, 7, 70), node("main", 1, 8, 80), node("main", 2, 9, 90), node("side", 1, 10, 100)];
    assert_eq!(base_fee(&lane, &nodes), Some(80), "and not what a node of another chain says");
    assert_eq!(base_fee(&LaneFacts { chain: None, ..lane }, &nodes), None);
}

#[test]
fn a_listener_waits_is_halted_or_lags() {
    let base = WireListener {
        name: "price@main".to_owned(),
        state: ListenerState::Following,
        detail: None,
        origin: Some("main".to_owned()),
        cursor: Some(7),
        lead: None,
        read_to: None,
        finalized: None,
        head: None,
        looked_at_ms: None,
        behind_blocks: Some(0),
        behind_ms: None,
        nodes: Vec::new(),
    };
    check(&listener(&base), &[(Level::Well, "at 7")]);
    let timer = WireListener { origin: None, behind_blocks: None, ..base.clone() };
    check(&listener(&timer), &[(Level::Well, "at 7")]);
    let unseen = WireListener { behind_blocks: None, ..base.clone() };
    check(&listener(&unseen), &[(Level::Look, "how far it is behind is not known: no block of main was seen")]);
    let elsewhere =
        WireListener { state: ListenerState::Elsewhere, behind_blocks: None, behind_ms: Some(1), ..base.clone() };
    check(&listener(&elsewhere), &[(Level::Well, "at 7; another process reads it")]);
    let why = Some("why".to_owned());
    let halted = WireListener { state: ListenerState::Halted, detail: why.clone(), ..base.clone() };
    check(&listener(&halted), &[(Level::Bad, "it is halted: why")]);
    let waits = WireListener { state: ListenerState::Waits, detail: why, behind_blocks: None, ..base.clone() };
    check(&listener(&waits), &[(Level::Look, "it waits: why")]);
    check(&listener(&WireListener { behind_blocks: Some(500), ..base.clone() }), &[(Level::Look, "500 blocks")]);
    check(&listener(&WireListener { behind_ms: Some(900_000), ..base }), &[(Level::Look, "main is 15 min old")]);
}

#[test]
fn nodes_and_accounts_are_looked_at_one_by_one() {
    let node = |name: &str, says| NodeFacts { chain: "main".to_owned(), chain_id: 1, node: name.to_owned(), says };
    let away = || Err("no".to_owned());
    let at = |chain_id, head| Ok(NodeSays { chain_id, head, base_fee: None });
    check(&nodes(&[node("a", at(1, 50))]), &[(Level::Well, "at block 50")]);
    check(&nodes(&[node("a", away())]), &[(Level::Bad, "it does not answer")]);
    check(&nodes(&[node("a", away()), node("b", at(1, 9))]), &[(Level::Look, "node a"), (Level::Well, "node b")]);
    check(&nodes(&[node("a", at(5, 50))]), &[(Level::Bad, "it is on chain 5, not 1")]);
    check(
        &nodes(&[node("a", at(1, 50)), node("b", at(1, 9))]),
        &[(Level::Well, "node a"), (Level::Look, "41 blocks behind")],
    );
}

#[test]
fn an_account_needs_what_is_said_or_what_a_window_costs() {
    const ETHER: u128 = 1_000_000_000_000_000_000;
    let of = |address, balance| AccountFacts {
        lane: "first".to_owned(),
        chain: "main".to_owned(),
        currency: "ETH".to_owned(),
        address,
        balance,
        balance_min: Some(5 * ETHER),
        window: 10,
        gas: Some(50_000),
        gas_price: Some(2_000_000_000),
        lost: false,
    };
    let address = || Ok("0x12".to_owned());
    check(&account(&of(address(), Some(7 * ETHER))), &[(Level::Well, "0x12 has 7 ETH")]);
    check(&account(&of(address(), Some(4 * ETHER))), &[(Level::Look, "4 ETH, less than balance_min_gwei: 5 ETH")]);
    check(&account(&of(address(), Some(0))), &[(Level::Bad, "send funds")]);
    check(&account(&of(address(), None)), &[(Level::Look, "no node told")]);
    check(&account(&of(Err("no key".to_owned()), None)), &[(Level::Bad, "a key is lost")]);
    let lost = AccountFacts { lost: true, ..of(address(), Some(7 * ETHER)) };
    check(&account(&lost), &[(Level::Look, "once `roundtrip lanes show first` has nothing under way")]);
    // Without a word of the configuration: ten times 50,000 units of gas at 2 gwei.
    let unsaid = |balance| AccountFacts { balance_min: None, ..of(address(), Some(balance)) };
    check(&account(&unsaid(ETHER / 1000)), &[(Level::Well, "0x12 has 0.001 ETH")]);
    let told = "less than 10 transactions, a full window, cost now: 0.001 ETH";
    check(&account(&unsaid(ETHER / 1000 - 1)), &[(Level::Look, told)]);
    // Nor of the gas: what is taken for it is four times as much.
    let unknown = AccountFacts { gas: None, ..unsaid(ETHER / 1000) };
    check(&account(&unknown), &[(Level::Look, "0.001 ETH, less than 10 transactions")]);
    // No node tells the fee: nothing is said of what is enough.
    check(&account(&AccountFacts { gas_price: None, ..unsaid(1) }), &[(Level::Well, "0.000000000000000001 ETH")]);
}

#[test]
fn amounts_have_the_digits_that_count() {
    for (wei, expected) in [
        (0, "0 POL"),
        (1_234_567_890_000_000_000_000, "1234.5678 POL"),
        (1_000_000_000_000_000_000, "1 POL"),
        (1_000_000_000_000_000_001, "1 POL"),
        (12_345_678_000_000, "0.00001234 POL"),
        (7, "0.000000000000000007 POL"),
    ] {
        assert_eq!(amount(wei, "POL"), expected);
    }
}

#[test]
fn the_worst_comes_first() {
    let facts = Facts {
        vitals: Ok(Vitals::Memory),
        disk: None,
        now_ms: 0,
        routes: Err("away".to_owned()),
        tools: Vec::new(),
        lanes: Ok(Vec::new()),
        listeners: Ok(Vec::new()),
        wanted_listeners: Vec::new(),
        nodes: Vec::new(),
        accounts: Vec::new(),
    };
    check(&findings(&facts), &[(Level::Bad, "routes away"), (Level::Look, "in memory")]);
    // What all parts suffer from is told once.
    let lanes = Facts { lanes: Err("away".to_owned()), listeners: Err("away".to_owned()), ..facts };
    check(&findings(&lanes), &[(Level::Bad, "routes away"), (Level::Look, "in memory")]);
    let server = Facts { vitals: Err("not reached".to_owned()), ..lanes };
    check(&findings(&server), &[(Level::Bad, "store not reached")]);
    let evicting = Vitals::Redis(RedisVitals {
        settings: [("appendonly", "yes"), ("appendfsync", "always"), ("maxmemory-policy", "allkeys-lru")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        log_is_written: true,
        ..RedisVitals::default()
    });
    let refused = Facts { vitals: Ok(evicting), ..server };
    check(&findings(&refused), &[(Level::Bad, "maxmemory-policy is allkeys-lru")]);
    // What there is to be and is not is told.
    let unread = Facts { vitals: Ok(Vitals::Memory), routes: Ok(Vec::new()), ..refused };
    let unread = Facts { lanes: Ok(Vec::new()), listeners: Ok(Vec::new()), ..unread };
    let unread = Facts { wanted_listeners: vec!["price@main".to_owned()], ..unread };
    check(&findings(&unread), &[(Level::Look, "in memory"), (Level::Look, "listener price@main it has read nothing")]);
}
