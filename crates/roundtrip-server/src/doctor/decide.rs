//! What facts come to: pure functions, one for each part of the whole.

use roundtrip::inbox::StateKind;
use roundtrip::sender::{LaneStatus, ParcelStage};
use roundtrip::store::query::LaneView;
use roundtrip::store::vitals::{PostgresVitals, RedisVitals, SqliteVitals, Vitals};
use roundtrip::words::Nonce;
use roundtrip_evm::sender::Signed;
use roundtrip_tools::Away;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::facts::{
    AccountFacts, Disk, Facts, LaneFacts, Least, NodeFacts, NodeSays, RouteFacts, ToolFacts, ToolFound,
};
use crate::api::views::time_text;
use crate::api::{ListenerState, WireListener};

const MIB: u64 = 1 << 20;
/// From how much free space on a file is worth making smaller, if it is half of it.
const FREE_BYTES_MIN: u64 = 64 * MIB;
/// A log longer than this was not copied back for long.
const LOG_BYTES_MAX: u64 = 512 * MIB;
/// Less free space than one part in so many of a disk is little; in ten times as many, none.
const DISK_PART: u64 = 10;
/// So much free space is enough, however large the disk is.
const DISK_FREE_ENOUGH: u64 = 10 << 30;
/// From so many dead rows on, and as many as live ones, a table is bloated.
const DEAD_ROWS_MIN: u64 = 20_000;
/// A snapshot that is held for longer keeps the server from clearing up.
const SNAPSHOT_S_MAX: u64 = 600;
/// How many of a hundred are a lot, and all but all.
const MUCH_PERCENT: u64 = 80;
const ALL_PERCENT: u64 = 95;
/// What nobody takes for so long waits for a worker that is not there.
const QUEUED_MS_MAX: u64 = 600_000;
/// What is sent and not mined for so long is held up.
const SENT_MS_MAX: u64 = 600_000;
/// An answer that its receiver has not taken for so long is held up.
const UNDELIVERED_MS_MAX: u64 = 300_000;
/// A chain whose newest stored block is older is not read.
const BEHIND_MS_MAX: u64 = 600_000;
/// So many blocks that are not read are a backlog.
const BEHIND_BLOCKS_MAX: u64 = 100;
/// A node that is so many blocks behind another lags.
const NODE_LAG_MAX: u64 = 10;
/// So many gaps of a lane are counted.
const GAPS_MAX: usize = 16;
/// What to do about a tool that is away.
const AWAY_TO_DO: &str = "see that it runs and can be reached (`roundtrip check` asks it); if it answers that it has too \
     much to do, lower `concurrency` of its route's work, or give it more room; its requests go on by themselves then";
/// Where it is told what only the process itself knows.
const ASK_IT: &str = "`roundtrip doctor --url` with that process's telemetry.listen";
/// What to do about a store that does not tell of something.
const UNASKED_TO_DO: &str = "see to it that the store answers";
/// With so many attempts, a slot is stuck.
const ATTEMPTS_MANY: usize = 3;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It is as it should be.
    Well,
    /// It works, and somebody should look.
    Look,
    /// It does not work, or may lose something.
    Bad,
}

/// What kind of thing was found, for programs: the words of a finding may change, this does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// All is well with it.
    Well,
    /// No instance answers.
    NoInstance,
    /// The store, its file or its server.
    Store,
    /// A route has no room.
    RouteFull,
    /// A route has little room.
    RouteFilling,
    /// A route is paused.
    RoutePaused,
    /// Dead letters wait.
    DeadLetters,
    /// Workers do not reach what they work with.
    Unreached,
    /// Nobody takes what is queued.
    NoWorker,
    /// What was sent is not mined.
    NotMined,
    /// A receiver does not take answers.
    Undelivered,
    /// A tool cannot be asked.
    ToolAway,
    /// A lane is paused.
    LanePaused,
    /// A lane is in quarantine.
    LaneQuarantined,
    /// A lane cannot pay.
    LaneUnfunded,
    /// A lane is stopped.
    LaneStopped,
    /// A slot of a lane carries nothing.
    LaneGap,
    /// A slot pays all that it may.
    FeeCap,
    /// A slot is not mined after several attempts.
    SlotStuck,
    /// A listener stopped.
    ListenerHalted,
    /// A listener waits.
    ListenerWaits,
    /// A listener is blocks behind.
    ListenerBehind,
    /// What a listener read is old.
    ListenerOld,
    /// A listener has seen nothing of its chain yet.
    ListenerUnread,
    /// A node did badly lately.
    NodePoor,
    /// A node does not answer.
    NodeSilent,
    /// A node is on another chain.
    NodeAstray,
    /// A node is behind another.
    NodeBehind,
    /// A key is said to be lost.
    KeyLost,
    /// A key cannot be opened.
    KeyAway,
    /// What an account has is not known.
    BalanceUnknown,
    /// An account has nothing, or little.
    BalanceLow,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What kind of thing it is.
    pub kind: Kind,
    /// The name of the route, lane, listener or node that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// With what.
    pub about: String,
    /// What is so.
    pub found: String,
    /// What to do; nothing, if all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_do: Option<String>,
}

/// Findings about one thing.
struct About {
    what: String,
    name: Option<String>,
    found: Vec<Finding>,
}

impl About {
    fn new(what: impl Into<String>) -> About {
        About { what: what.into(), name: None, found: Vec::new() }
    }

    /// About what has a name, such as `lane north`.
    fn named(what: &str, name: &str) -> About {
        About { name: Some(name.to_owned()), ..About::new(format!("{what} {name}")) }
    }

    fn say(&mut self, kind: Kind, level: Level, found: impl Into<String>, to_do: &str) {
        let (about, name, to_do) = (self.what.clone(), self.name.clone(), Some(to_do.to_owned()));
        self.found.push(Finding { level, kind, name, about, found: found.into(), to_do });
    }

    /// Says something if it is so.
    fn when(&mut self, is_so: bool, kind: Kind, level: Level, found: impl Into<String>, to_do: &str) {
        if is_so {
            self.say(kind, level, found, to_do);
        }
    }

    /// What was found; that all is well, if nothing was.
    fn or_well(mut self, well: impl Into<String>) -> Vec<Finding> {
        if self.found.is_empty() {
            let (level, kind, found) = (Level::Well, Kind::Well, well.into());
            self.found.push(Finding { level, kind, name: self.name, about: self.what, found, to_do: None });
        }
        self.found
    }
}

/// What facts come to, worst first.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = store(&facts.vitals, facts.disk);
    // What the tool itself is known for need not be told of its requests too.
    let away = |name: &str| facts.tools.iter().any(|tool| tool.route == name && tool.is_away());
    let route = |route: &RouteFacts| self::route(route, away(route.view.name.as_str()), facts.now_ms);
    let mut of_store = told(&facts.routes, "routes", route);
    of_store.extend(told(&facts.lanes, "lanes", |lane| self::lane(lane, base_fee(lane, &facts.nodes))));
    of_store.extend(told(&facts.listeners, "listeners", listener));
    of_store.extend(unread(facts));
    let unasked = |finding: &Finding| finding.to_do.as_deref() == Some(UNASKED_TO_DO);
    // Why the store does not answer is told once, not of each part of it.
    let mut is_told = all.iter().any(|finding| finding.level == Level::Bad);
    of_store.retain(|finding| !unasked(finding) || !std::mem::replace(&mut is_told, true));
    all.extend(of_store);
    facts.tools.iter().for_each(|tool| all.extend(self::tool(tool, facts.now_ms)));
    all.extend(nodes(&facts.nodes));
    facts.accounts.iter().for_each(|account| all.extend(self::account(account)));
    all.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    all
}

fn bytes(count: u64) -> String {
    match count {
        0..MIB => format!("{} KiB", count >> 10),
        _ if count < 10 << 30 => format!("{} MiB", count >> 20),
        _ => format!("{} GiB", count >> 30),
    }
}

/// So many, in words that are right for one, too.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn store(vitals: &Result<Vitals, String>, disk: Option<Disk>) -> Vec<Finding> {
    let mut about = About::new("store");
    match vitals {
        Err(why) => about.say(Kind::Store, Level::Bad, why.clone(), "see to it that the store is there and answers"),
        Ok(Vitals::Memory) => about.say(
            Kind::Store,
            Level::Look,
            "everything is in memory, and goes with the process",
            "set store.url to sqlite:PATH, postgres:// or redis://",
        ),
        Ok(Vitals::Sqlite(file)) => return sqlite(file, disk),
        Ok(Vitals::Postgres(server)) => return postgres(server),
        Ok(Vitals::Redis(server)) => return redis(server),
    }
    about.or_well("it answers")
}

fn sqlite(file: &SqliteVitals, disk: Option<Disk>) -> Vec<Finding> {
    let mut about = About::new(format!("store {}", file.path));
    about.when(
        file.journal_mode != "wal",
        Kind::Store,
        Level::Bad,
        format!("its journal mode is {}, so commits are not synced as they should be", file.journal_mode),
        "nobody but the program may set it: start the program, which sets it back",
    );
    about.when(
        file.free_bytes >= FREE_BYTES_MIN && file.free_bytes >= file.bytes / 2,
        Kind::Store, Level::Look,
        format!("{} of its {} are free", bytes(file.free_bytes), bytes(file.bytes)),
        "stop the program and `roundtrip store copy --to sqlite:NEW`, then run on the copy; or leave it, new rows go there",
    );
    about.when(
        file.log_bytes > LOG_BYTES_MAX,
        Kind::Store,
        Level::Look,
        format!("its log has {}", bytes(file.log_bytes)),
        "somebody reads the file for long, such as a backup that hangs: end it",
    );
    if let Some(Disk { free_bytes, bytes: all }) = disk {
        let left = format!("{} of {} are left on its disk", bytes(free_bytes), bytes(all));
        let to_do = "free space or move the file to a larger disk; shorten keep_settled and keep_dead of the routes";
        let level = if free_bytes < all / DISK_PART / 10 { Level::Bad } else { Level::Look };
        about.when(free_bytes < (all / DISK_PART).min(DISK_FREE_ENOUGH), Kind::Store, level, left, to_do);
    }
    about.or_well(format!("{}, synced at every commit", bytes(file.bytes)))
}

fn postgres(server: &PostgresVitals) -> Vec<Finding> {
    let mut about = About::new("store on Postgres");
    let is = |name: &str| server.settings.get(name).map_or("unknown", String::as_str);
    for (name, risk) in [
        ("fsync", "a power cut may destroy the whole database"),
        ("synchronous_commit", "a crash loses what was acknowledged"),
        ("full_page_writes", "a power cut may destroy pages"),
    ] {
        let found = format!("{name} is off: {risk}");
        about.when(
            is(name) == "off",
            Kind::Store,
            Level::Bad,
            found,
            &format!("set {name} = on, and reload the server"),
        );
    }
    let found = "autovacuum is off: dead rows stay, and tables grow without end";
    about.when(
        is("autovacuum") == "off",
        Kind::Store,
        Level::Look,
        found,
        "set autovacuum = on, and reload the server",
    );
    for table in server.tables.iter().filter(|table| table.dead_rows >= DEAD_ROWS_MIN.max(table.rows)) {
        about.say(
            Kind::Store,
            Level::Look,
            format!(
                "table {} has {} dead rows beside {}, {}",
                table.name,
                table.dead_rows,
                table.rows,
                bytes(table.bytes)
            ),
            "look who holds a snapshot (pg_stat_activity.backend_xmin, pg_replication_slots), then VACUUM the table",
        );
    }
    about.when(
        server.oldest_snapshot_s > SNAPSHOT_S_MAX,
        Kind::Store,
        Level::Look,
        format!(
            "a snapshot is held for {}, and keeps the server from clearing up",
            lasting(server.oldest_snapshot_s.saturating_mul(1000))
        ),
        "end the report, the backup or the idle transaction that holds it (pg_stat_activity.xact_start)",
    );
    about.when(
        server.idle_slots > 0,
        Kind::Store,
        Level::Look,
        format!("{} replication slots that nobody reads keep the server from clearing up", server.idle_slots),
        "drop them (pg_drop_replication_slot), or start their replicas",
    );
    let most = is("max_connections").parse().unwrap_or(u64::MAX);
    about.when(
        server.connections.saturating_mul(100) >= most.saturating_mul(MUCH_PERCENT),
        Kind::Store,
        Level::Look,
        format!("{} of {most} connections are taken", server.connections),
        "raise max_connections, or put a pooler in front of those who need many",
    );
    let size = server.tables.iter().map(|table| table.bytes).sum();
    about.or_well(format!("{}, synced at every commit, {} connections", bytes(size), server.connections))
}

fn redis(server: &RedisVitals) -> Vec<Finding> {
    let mut about = About::new("store on Redis");
    let is = |name: &str| server.settings.get(name).map_or("unknown", String::as_str);
    if server.settings.is_empty() {
        about.say(
            Kind::Store,
            Level::Look,
            "its settings may not be read (CONFIG GET)",
            "see to it that appendonly is yes, appendfsync is always and maxmemory-policy is noeviction",
        );
    } else {
        let found = "appendonly is not yes: a restart loses what was acknowledged";
        about.when(
            is("appendonly") != "yes",
            Kind::Store,
            Level::Bad,
            found,
            "set `appendonly yes` and `appendfsync always`",
        );
        let found = format!(
            "appendfsync is {}: a crash loses up to a second of what was acknowledged, or more",
            is("appendfsync")
        );
        about.when(is("appendfsync") != "always", Kind::Store, Level::Look, found, "set `appendfsync always`");
        let found = format!("maxmemory-policy is {}: a full server throws requests away", is("maxmemory-policy"));
        about.when(
            is("maxmemory-policy") != "noeviction",
            Kind::Store,
            Level::Bad,
            found,
            "set `maxmemory-policy noeviction`",
        );
    }
    let found = "its log could not be written: what it acknowledges now may be lost";
    about.when(
        !server.log_is_written,
        Kind::Store,
        Level::Bad,
        found,
        "look at its disk and its log, then at aof_last_write_status",
    );
    let used = server.used_bytes.saturating_mul(100).checked_div(server.max_bytes).unwrap_or(0);
    let found = format!("{} of {} are used", bytes(server.used_bytes), bytes(server.max_bytes));
    let level = if used >= ALL_PERCENT { Level::Bad } else { Level::Look };
    about.when(
        used >= MUCH_PERCENT,
        Kind::Store,
        level,
        found,
        "raise maxmemory; shorten keep_settled and keep_dead of the routes",
    );
    about.or_well(format!("{}, {} replicas", bytes(server.used_bytes), server.replicas))
}

/// What is found of each, or that the store does not tell of them.
fn told<T>(all: &Result<Vec<T>, String>, name: &str, of: impl Fn(&T) -> Vec<Finding>) -> Vec<Finding> {
    match all {
        Ok(all) => all.iter().flat_map(of).collect(),
        Err(why) => {
            let mut about = About::new(name);
            about.say(Kind::Store, Level::Bad, why.clone(), UNASKED_TO_DO);
            about.found
        }
    }
}

/// A length of time in the largest unit of which it has two or more.
fn lasting(ms: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min")];
    let unit = UNITS.into_iter().find(|(unit, _)| ms >= 2 * unit);
    let (unit, name) = unit.unwrap_or((1000, "s"));
    format!("{} {name}", ms / unit)
}

/// The tool that works on a route, as whoever calls it finds it, or as it answers now.
fn tool(tool: &ToolFacts, now_ms: u64) -> Vec<Finding> {
    let mut about = About::named("tool of route", &tool.route);
    match &tool.found {
        ToolFound::Called(Some(Away { since, why })) => {
            let found = format!(
                "it cannot be asked, for {} now: {why}; requests wait for it, at no cost",
                lasting(now_ms.saturating_sub(since.0))
            );
            about.say(Kind::ToolAway, Level::Look, found, AWAY_TO_DO);
        }
        ToolFound::Asked(Err(why)) => {
            let found = format!("it was asked from here, and cannot be: {why}; another process calls it");
            about.say(Kind::ToolAway, Level::Look, found, AWAY_TO_DO);
        }
        ToolFound::Called(None) | ToolFound::Asked(Ok(())) => {}
    }
    about.or_well("it is there, as far as is known")
}

fn route(facts: &RouteFacts, tool_is_away: bool, now_ms: u64) -> Vec<Finding> {
    let RouteFacts { view, counts, unreached, undelivered } = facts;
    let mut about = About::named("route", view.name.as_str());
    let live: u64 = counts.iter().map(|count| count.requests).sum();
    let of = |state| counts.iter().find(|count| count.state == state);
    let capacity = view.policy.capacity;
    let full = live >= capacity;
    let found = format!("{live} of {capacity} places are taken");
    let to_do = "see where they are (`roundtrip routes list`), and what keeps them there; then raise capacity, if that is not it";
    about.when(full, Kind::RouteFull, Level::Bad, format!("it is full and takes nothing more: {found}"), to_do);
    let filling = !full && live.saturating_mul(100) >= capacity.saturating_mul(MUCH_PERCENT);
    about.when(filling, Kind::RouteFilling, Level::Look, found, to_do);
    about.when(
        view.paused,
        Kind::RoutePaused,
        Level::Look,
        "it is paused: nothing is handed out",
        &format!("`roundtrip routes resume {}` once the reason is gone", view.name),
    );
    if let Some(dead) = of(StateKind::Dead) {
        let to_do =
            format!("`roundtrip dead list --route {}` says of what; mend that, then `roundtrip dead retry`", view.name);
        let found = counted(dead.requests, "dead letter waits for a person", "dead letters wait for a person");
        about.say(Kind::DeadLetters, Level::Look, found, &to_do);
    }
    let waiting = counted(
        unreached.requests as u64,
        "request waits for what its worker could not reach",
        "requests wait for what their worker could not reach",
    );
    about.when(
        unreached.requests > 0 && !tool_is_away,
        Kind::Unreached,
        Level::Look,
        format!("{waiting}: {}", unreached.why),
        AWAY_TO_DO,
    );
    if let Some(queued) = of(StateKind::Queued).filter(|_| !view.paused) {
        let age = now_ms.saturating_sub(queued.oldest_at.0);
        let waiting = counted(queued.requests, "request waits for a worker", "requests wait for a worker");
        let found = format!("{waiting}, the oldest came in {} ago", lasting(age));
        let to_do = "start workers for it, or more of them; look at their logs, and at its tool, if it has one";
        about.when(age > QUEUED_MS_MAX, Kind::NoWorker, Level::Look, found, to_do);
    }
    if let Some(sent) = of(StateKind::Assigned) {
        let age = now_ms.saturating_sub(sent.oldest_at.0);
        let unmined = counted(sent.requests, "answer is sent and not mined", "answers are sent and not mined");
        let found = format!("{unmined}, of a request that came in {} ago", lasting(age));
        let to_do = "`roundtrip lanes list` says which lane is held up; see docs/operations.md, a lane is stuck";
        about.when(age > SENT_MS_MAX, Kind::NotMined, Level::Look, found, to_do);
    }
    if let Some(since) = undelivered {
        let age = now_ms.saturating_sub(since.0);
        let ready = of(StateKind::Ready).map_or(1, |ready| ready.requests);
        let undelivered = counted(ready, "answer is not delivered", "answers are not delivered");
        let found = format!("{undelivered}, the oldest has waited for {}", lasting(age));
        let to_do = format!(
            "see that {} takes them, and that a process with the role send runs; its log says what the receiver answers. They go out by themselves then",
            view.policy.destination.as_ref().map_or("its destination", |to| to.as_str())
        );
        about.when(age > UNDELIVERED_MS_MAX, Kind::Undelivered, Level::Look, found, &to_do);
    }
    about.or_well(format!("{live} of {capacity} places are taken"))
}

/// Slots that were passed over, and carry nothing.
fn gaps(lane: &LaneView) -> Vec<u64> {
    let taken: Vec<u64> = lane.parcels.iter().map(|parcel| parcel.nonce.0).collect();
    // A lane has a window; what lies between is bounded by it, but for a gap that somebody left.
    (lane.settled.0..lane.next.0).filter(|nonce| !taken.contains(nonce)).take(GAPS_MAX).collect()
}

/// What a unit of gas costs on a lane's chain by now, as the node says that is furthest.
fn base_fee(lane: &LaneFacts, nodes: &[NodeFacts]) -> Option<u128> {
    let of_chain = nodes.iter().filter(|node| Some(&node.chain) == lane.chain.as_ref());
    let says = of_chain.filter_map(|node| node.says.as_ref().ok().filter(|says| says.chain_id == node.chain_id));
    says.max_by_key(|says| says.head)?.base_fee
}

/// The lowest slot that pays all that it may and is not mined. Whoever sends on it knows; to others the signed bytes
/// tell as much where the chain asks for more than they pay, and the cap allows no dearer ones.
fn at_cap(facts: &LaneFacts, base_fee: Option<u128>) -> Option<Nonce> {
    if facts.at_cap.is_some() {
        return facts.at_cap;
    }
    let (fee_cap, base_fee) = (facts.fee_cap?, base_fee?);
    let lowest = facts.view.parcels.iter().find(|parcel| parcel.stage == ParcelStage::Assigned)?;
    let newest = Signed::read(lowest.attempts.last()?)?;
    (newest.fee_most < base_fee && !newest.can_pay_more(fee_cap)).then_some(lowest.nonce)
}

fn lane(facts: &LaneFacts, base_fee: Option<u128>) -> Vec<Finding> {
    let (lane, at_cap) = (&facts.view, at_cap(facts, base_fee));
    let (mut about, name) = (About::named("lane", lane.name.as_str()), &lane.name);
    match &lane.status {
        LaneStatus::Active => {}
        LaneStatus::Paused { reason } => about.say(
            Kind::LanePaused,
            Level::Look,
            format!("it is paused: {reason}"),
            &format!("`roundtrip lanes resume {name}` once the reason is gone"),
        ),
        LaneStatus::Quarantined { until } => about.say(
            Kind::LaneQuarantined,
            Level::Look,
            format!("it is in quarantine until {}: what it sent had no effect", time_text(until.0)),
            &format!(
                "see why in `roundtrip lanes show {name}`; it ends by itself, or by `roundtrip lanes resume {name}`"
            ),
        ),
        LaneStatus::Unfunded { reason } => {
            about.say(
                Kind::LaneUnfunded,
                Level::Bad,
                format!("it cannot pay: {reason}"),
                "send funds to its account; it goes on by itself",
            );
        }
        LaneStatus::Stopped => about.say(
            Kind::LaneStopped,
            Level::Bad,
            "it is stopped: the store was rolled back, and what was sent since is not known",
            &format!("`roundtrip lanes rebuild {name}`"),
        ),
    }
    let gaps = gaps(lane);
    if let Some(first) = gaps.first() {
        let found = format!("slot {first} carries nothing, and what is above it waits ({} such slots)", gaps.len());
        about.say(
            Kind::LaneGap,
            Level::Look,
            found,
            "its sender fills it by itself within a minute; see that one runs (`roundtrip run`)",
        );
    }
    if let Some(slot) = at_cap {
        let found = format!("slot {} pays all that it may and is not mined; what is above it waits", slot.0);
        let to_do = "raise `fee_cap_gwei` of its destination and start again, or wait until the chain is cheaper; see docs/operations.md, a lane is stuck";
        about.say(Kind::FeeCap, Level::Bad, found, to_do);
    }
    let stuck = lane.parcels.iter().find(|parcel| parcel.stage == ParcelStage::Assigned);
    let stuck = stuck.filter(|_| at_cap.is_none());
    if let Some(stuck) = stuck.filter(|parcel| parcel.attempts.len() >= ATTEMPTS_MANY) {
        let (nonce, attempts) = (stuck.nonce.0, stuck.attempts.len());
        let to_do = format!(
            "compare the chain's base fee with fee_cap_gwei and raise that; or `roundtrip lanes cancel {name} --nonce {nonce} --requeue`"
        );
        about.say(Kind::SlotStuck, Level::Look, format!("slot {nonce} is not mined after {attempts} attempts"), &to_do);
    }
    about.or_well(format!("{} of {} under way, next slot {}", lane.under_way, lane.window, lane.next.0))
}

fn listener(listener: &WireListener) -> Vec<Finding> {
    let mut about = About::named("listener", &listener.name);
    let why = listener.detail.clone().unwrap_or_default();
    match listener.state {
        ListenerState::Halted => about.say(
            Kind::ListenerHalted,
            Level::Bad,
            format!("it is halted: {why}"),
            "its chain did what it must not: look at the chain with another node, then start the program again",
        ),
        ListenerState::Waits => {
            about.say(
                Kind::ListenerWaits,
                Level::Look,
                format!("it waits: {why}"),
                "see to its nodes, or to the room of its route; it goes on by itself",
            );
        }
        ListenerState::Following | ListenerState::Elsewhere => {}
    }
    lag(&mut about, listener);
    for node in listener.nodes.iter().filter(|node| !node.healthy) {
        let found = format!("{} did badly lately", node.name);
        about.say(Kind::NodePoor, Level::Look, found, "look at that node, or take another");
    }
    let at = listener.cursor.map_or("its start".to_owned(), |cursor| cursor.to_string());
    about.or_well(match listener.state {
        ListenerState::Elsewhere => {
            format!("at {at}; another process reads it, and knows whether it waits or is halted: {ASK_IT}")
        }
        _ => format!("at {at}"),
    })
}

/// How far a listener of a chain is behind; that this is not known is told, too, unless it is known why.
fn lag(about: &mut About, listener: &WireListener) {
    let Some(origin) = &listener.origin else { return };
    match (listener.behind_blocks, listener.behind_ms) {
        (Some(blocks), _) if blocks > BEHIND_BLOCKS_MAX => about.say(
            Kind::ListenerBehind,
            Level::Look,
            format!("{blocks} blocks are not read yet"),
            "if it does not shrink, give the chain faster nodes or a larger range",
        ),
        (_, Some(age)) => about.when(
            age > BEHIND_MS_MAX,
            Kind::ListenerOld,
            Level::Look,
            format!("what was read of {origin} is {} old", lasting(age)),
            "see that a process with the role listen runs, and that its nodes are not behind themselves",
        ),
        (Some(_), None) => {}
        (None, None) => about.when(
            about.found.is_empty(),
            Kind::ListenerUnread,
            Level::Look,
            format!("how far it is behind is not known: no block of {origin} was seen yet"),
            "look again in a minute; then see that a process with the role listen runs, and that its nodes answer",
        ),
    }
}

/// Listeners that there are to be and that have read nothing, in whatever process.
fn unread(facts: &Facts) -> Vec<Finding> {
    let Ok(known) = &facts.listeners else { return Vec::new() };
    let is_known = |name: &str| known.iter().any(|listener| listener.name == name);
    let unread = facts.wanted_listeners.iter().filter(|name| !is_known(name));
    let told = unread.map(|name| {
        let mut about = About::named("listener", name);
        let to_do = "see that a process with the role listen runs";
        about.say(Kind::ListenerUnread, Level::Look, "it has read nothing yet", to_do);
        about.found
    });
    told.flatten().collect()
}

fn nodes(nodes: &[NodeFacts]) -> Vec<Finding> {
    let mut all = Vec::new();
    for node in nodes {
        let what = format!("node {} of {}", node.node, node.chain);
        let mut about = About { name: Some(node.node.clone()), ..About::new(what) };
        let of_chain = || nodes.iter().filter(|other| other.chain == node.chain);
        let best = of_chain().filter_map(|other| other.says.as_ref().ok()).map(|says| says.head).max();
        match &node.says {
            Err(why) => {
                let level = if best.is_none() { Level::Bad } else { Level::Look };
                // A call that was not answered says that itself.
                let found = format!("it does not answer: {}", why.strip_prefix("no answer: ").unwrap_or(why));
                about.say(Kind::NodeSilent, level, found, "see to it, or give the chain another URL");
            }
            Ok(says) if says.chain_id != node.chain_id => {
                about.say(
                    Kind::NodeAstray,
                    Level::Bad,
                    format!("it is on chain {}, not {}", says.chain_id, node.chain_id),
                    "correct its URL, or chain_id",
                );
            }
            Ok(NodeSays { head, .. }) => {
                let behind = best.unwrap_or(*head).saturating_sub(*head);
                let found = format!("it is {behind} blocks behind another node");
                let to_do = "wait until it has caught up, or take another";
                about.when(behind > NODE_LAG_MAX, Kind::NodeBehind, Level::Look, found, to_do);
            }
        }
        let head = node.says.as_ref().map_or(0, |says| says.head);
        all.extend(about.or_well(format!("at block {head}")));
    }
    all
}

fn account(account: &AccountFacts) -> Vec<Finding> {
    let mut about = About::named("account of lane", &account.lane);
    let address = match &account.address {
        Ok(address) => address.clone(),
        Err(why) => {
            about.say(
                Kind::KeyAway,
                Level::Bad,
                why.clone(),
                "bring its key back, or say that it is lost; see docs/operations.md, a key is lost",
            );
            return about.found;
        }
    };
    let to_do = format!(
        "once `roundtrip lanes show {}` has nothing under way, take the lane out of the configuration",
        account.lane
    );
    let found = format!("the key of {address} is lost: what is signed is sent, and nothing more is signed");
    about.when(account.lost, Kind::KeyLost, Level::Look, found, &to_do);
    let told = |wei| amount(wei, &account.currency);
    let Some(balance) = account.balance else {
        let found = format!("no node told the balance of {address}");
        about.say(Kind::BalanceUnknown, Level::Look, found, "see to the nodes of its chain");
        return about.found;
    };
    if balance == 0 && account.gas_price != Some(0) {
        about.say(Kind::BalanceLow, Level::Bad, format!("{address} has nothing"), "send funds to it");
    } else if let Some(least) = account.least().filter(|least| balance < least.wei()) {
        let than = match least {
            Least::Said(_) => "balance_min_gwei".to_owned(),
            Least::Window { transactions, .. } => format!("{transactions} transactions, a full window, cost now"),
        };
        let found = format!("{address} has {}, less than {than}: {}", told(balance), told(least.wei()));
        about.say(Kind::BalanceLow, Level::Look, found, "send funds to it, before it has nothing");
    }
    about.or_well(format!("{address} has {}", told(balance)))
}

/// An amount as people write it, with four digits that count.
fn amount(wei: u128, currency: &str) -> String {
    const ONE: u128 = 1_000_000_000_000_000_000;
    const DIGITS: usize = 4;
    let (whole, fraction) = (wei / ONE, format!("{:018}", wei % ONE));
    let small = if whole == 0 { fraction.bytes().take_while(|digit| *digit == b'0').count() } else { 0 };
    let shown = fraction.get(..small + DIGITS).unwrap_or(&fraction).trim_end_matches('0');
    let point = if shown.is_empty() { "" } else { "." };
    format!("{whole}{point}{shown} {currency}")
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
