//! Lanes: the accounts that send.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;

use super::desk::{self, Desk, Refused, look};
use super::given::Reach;
use super::requests::segment;
use super::show::{self, Table, line, short, time};
use crate::api::Whole;
use crate::api::lanes::{WireLane, WireParcel};
use crate::api::operate::{Done, LaneCall, RebuildCall, RebuildProgress};
use crate::api::watch::Lanes as AllLanes;

/// How often a rebuild is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is done to lanes.
#[derive(Subcommand)]
pub(super) enum Lanes {
    /// Lists them.
    List {
        #[command(flatten)]
        reach: Reach,
    },
    /// Shows one, with what is under way on it.
    Show {
        /// Which lane.
        lane: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Sends nothing new; what is under way goes on.
    Pause {
        /// Which lane.
        lane: String,
        /// Why, for whoever reads it.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Sends again: ends a pause or a quarantine.
    Resume {
        /// Which lane.
        lane: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Lets a stopped lane go on, after all that was sent from it was matched by hand.
    Reconcile {
        /// Which lane.
        lane: String,
        /// The next nonce that is free on the chain.
        #[arg(long)]
        next: u64,
        #[command(flatten)]
        reach: Reach,
    },
    /// Replaces what is on a slot by a transaction that does nothing.
    Cancel {
        /// Which lane.
        lane: String,
        /// Which slot.
        #[arg(long)]
        nonce: u64,
        /// Its answers go out again on another slot; else they are dead letters.
        #[arg(long)]
        requeue: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Rebuilds stopped lanes from the chain, after the store was rolled back; says when it is done.
    Rebuild {
        /// A lane; all those of its destination are rebuilt.
        lane: String,
        /// How long requests without an answer are waited for.
        #[arg(long, value_name = "LENGTH", default_value = "10m")]
        patience: humantime::Duration,
        /// Does not wait until it is done.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        reach: Reach,
    },
}

impl Lanes {
    pub(super) async fn act(self) -> anyhow::Result<()> {
        match self {
            Lanes::List { reach } => {
                let found: AllLanes = look(&reach, async |desk| desk.get("/v1/lanes").await).await?;
                show::print(reach.json, &found, |found| table(&found.lanes))
            }
            Lanes::Show { lane, reach } => {
                let path = format!("/v1/lanes/{}", segment(&lane)?);
                let found: WireLane = look(&reach, async |desk| desk.get(&path).await).await?;
                show::print(reach.json, &found, whole)
            }
            Lanes::Pause { lane, reason, reach } => {
                order(&reach, &lane, "pause", LaneCall { reason, ..LaneCall::default() }, "is paused").await
            }
            Lanes::Resume { lane, reach } => order(&reach, &lane, "resume", LaneCall::default(), "sends again").await,
            Lanes::Reconcile { lane, next, reach } => {
                let call = LaneCall { next: Some(Whole(next)), ..LaneCall::default() };
                order(&reach, &lane, "reconcile", call, &format!("goes on at slot {next}")).await
            }
            Lanes::Cancel { lane, nonce, requeue, reach } => {
                let call = LaneCall { nonce: Some(Whole(nonce)), requeue, ..LaneCall::default() };
                let then = if requeue { "its answers go out again" } else { "its answers are dead letters then" };
                order(&reach, &lane, "cancel", call, &format!("is to cancel slot {nonce}; {then}")).await
            }
            Lanes::Rebuild { lane, patience, no_wait, reach } => {
                let rebuilt = look(&reach, async |desk| rebuild(desk, &lane, *patience, !no_wait).await).await?;
                show::print(reach.json, &rebuilt, rebuilt_text)
            }
        }
    }
}

async fn order(reach: &Reach, lane: &str, order: &str, call: LaneCall, past: &str) -> anyhow::Result<()> {
    let path = format!("/v1/lanes/{}/{order}", segment(lane)?);
    let done: Done =
        desk::order(reach, async |desk| desk.post(&path, &call).await.with_context(|| format!("lane {lane}"))).await?;
    show::print(reach.json, &done, |done| match &*done.result {
        "already" => format!("lane {lane} {past}, as before\n"),
        _ => format!("lane {lane} {past}\n"),
    })
}

/// Asks for a rebuild, and waits for its end.
async fn rebuild(desk: &Desk, lane: &str, patience: Duration, wait: bool) -> anyhow::Result<RebuildProgress> {
    if !desk.is_instance() {
        bail!(
            "no instance runs, and lanes are rebuilt by the one that sends: start it with `roundtrip run`, then do this again"
        );
    }
    let destination = destination_of(desk, lane).await?;
    let path = format!("/v1/destinations/{}/rebuild", segment(&destination)?);
    let patience_ms = Whole(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
    let mut progress: RebuildProgress = desk.post(&path, &RebuildCall { patience_ms }).await?;
    let bar = show::bar(None, "rebuilding");
    while wait && progress.progress == "waits" {
        bar.set_message(progress.until.clone().unwrap_or_default());
        tokio::time::sleep(LOOK_EVERY).await;
        progress = desk.get(&path).await?;
    }
    bar.finish_and_clear();
    Ok(progress)
}

/// The destination of a lane; whoever names the destination itself is understood.
async fn destination_of(desk: &Desk, lane: &str) -> anyhow::Result<String> {
    let found: Result<WireLane, _> = desk.get(&format!("/v1/lanes/{}", segment(lane)?)).await;
    match found {
        Ok(found) => return Ok(found.destination),
        Err(error) if error.downcast_ref().is_some_and(|refused: &Refused| refused.status == 404) => {}
        Err(error) => return Err(error),
    }
    let AllLanes { lanes } = desk.get("/v1/lanes").await?;
    match lanes.iter().any(|known| known.destination == lane) {
        true => Ok(lane.to_owned()),
        false => bail!("no lane and no destination with lanes is called {lane:?}: `roundtrip lanes list` shows them"),
    }
}

fn rebuilt_text(progress: &RebuildProgress) -> String {
    match (&progress.rebuilt, &progress.until) {
        (Some(found), _) => format!(
            "rebuilt: {} transactions were unknown; {} answers found done, {} failed, {} transactions of others, {} requests waited for in vain\n",
            found.sent, found.done, found.failed, found.foreign, found.unanswered
        ),
        (None, Some(until)) => format!("under way, and waits until {until}\n"),
        (None, None) => format!("{}\n", progress.progress),
    }
}

fn status(lane: &WireLane) -> String {
    let status = match (&lane.reason, lane.until_ms) {
        (Some(reason), _) => format!("{}: {reason}", lane.status),
        (None, Some(until)) => format!("{} until {}", lane.status, time(until)),
        (None, None) => lane.status.to_string(),
    };
    match lane.at_fee_cap {
        Some(slot) => format!("{status}; slot {slot} is at the fee cap"),
        None => status,
    }
}

/// The lanes in one view.
pub(super) fn table(lanes: &[WireLane]) -> String {
    if lanes.is_empty() {
        return "there is no lane yet: one appears when its instance first sends\n".to_owned();
    }
    let mut table = Table::of(&["lane", "destination", "settled", "next", "under way", "window", "status"]);
    for lane in lanes {
        table.row([
            lane.name.clone(),
            lane.destination.clone(),
            lane.settled.to_string(),
            lane.next.to_string(),
            lane.under_way.to_string(),
            lane.window.to_string(),
            line(&status(lane)),
        ]);
    }
    table.to_string()
}

fn whole(lane: &WireLane) -> String {
    let mut parcels = Table::of(&["slot", "stage", "attempts", "newest attempt", "requests"]);
    for parcel in &lane.parcels {
        let WireParcel { nonce, stage, requests, attempts, cancelled, .. } = parcel;
        let stage = if *cancelled { format!("{stage}, to be cancelled") } else { stage.to_string() };
        let carried: Vec<String> = requests.iter().map(|id| short(id)).collect();
        let carried = if carried.is_empty() { "nothing: it fills a gap".to_owned() } else { carried.join(" ") };
        let newest = attempts.last().map(|attempt| attempt.hash.clone()).unwrap_or_default();
        parcels.row([nonce.to_string(), stage, attempts.len().to_string(), newest, line(&carried)]);
    }
    let lanes = table(std::slice::from_ref(lane));
    if lane.parcels.is_empty() {
        return format!("{lanes}\nnothing is under way\n");
    }
    let account = lane.account.as_ref().map(|account| format!("signed by {account}\n"));
    format!("{lanes}{}\n{parcels}", account.unwrap_or_default())
}
