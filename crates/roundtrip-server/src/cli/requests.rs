//! Requests: looked at, submitted, retried, cancelled.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use axum::body::Bytes;
use axum::http::Method;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::desk::{self, Desk, look};
use super::given::Reach;
use super::routes::must_exist;
use super::show::{self, Table, ago, length, line, now_ms, or_dash, short, time};
use crate::api::Whole;
use crate::api::requests::{Accepted, ListQuery, Mended, SubmitQuery, Timeline};
use crate::api::views::{State, WireMoment, WirePage, WireRequest};

/// Digits of a whole id.
const ID_DIGITS: usize = 64;
/// Requests in one call.
const PAGE: usize = 1000;
/// How many ids are named where several begin alike.
const NAMED_MAX: usize = 5;

/// What is done to requests.
#[derive(Subcommand)]
pub(super) enum Requests {
    /// Lists live requests, oldest first.
    List {
        #[command(flatten)]
        filter: Filter,
        /// Only in these states: held, queued, leased, waiting, ready, assigned, included, confirmed, dead.
        #[arg(long, value_delimiter = ',')]
        state: Vec<String>,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        reach: Reach,
    },
    /// Shows one, with what happened to it.
    Show {
        /// Its id, or how it begins.
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Has dead letters worked on again, from their first attempt, or, where they have an answer, only sent again.
    Retry {
        /// Their ids, or how they begin.
        #[arg(required = true)]
        ids: Vec<String>,
        /// Works them out anew, where they have an answer: that was wrong, and is thrown away.
        #[arg(long)]
        anew: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Ends requests for which nothing was sent.
    Cancel {
        /// Their ids, or how they begin.
        #[arg(required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Submits a request.
    Submit(Box<Submit>),
}

/// Which requests, as far as lists and bulk work have it in common.
#[derive(Args, Clone, Default)]
pub(super) struct Filter {
    /// Only of this route.
    #[arg(long)]
    pub(super) route: Option<String>,
    /// Only those that came in since then: a time such as 2026-01-31T12:00:00Z, or how long ago, such as 2h.
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    pub(super) since: Option<u64>,
    /// Only those that came in before then.
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    pub(super) until: Option<u64>,
    /// Only those whose last error contains this text.
    #[arg(long, value_name = "TEXT")]
    pub(super) error: Option<String>,
    /// Only ids that begin with these hexadecimal digits.
    #[arg(long, value_name = "DIGITS")]
    pub(super) prefix: Option<String>,
}

/// A request that is submitted.
#[derive(Args)]
pub(super) struct Submit {
    /// To which route.
    route: String,
    /// What is asked: JSON; without it, it is read from standard input.
    #[arg(conflicts_with = "file")]
    payload: Option<String>,
    /// A file with what is asked.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Any bytes and not JSON.
    #[arg(long)]
    raw: bool,
    /// Its id, 64 hexadecimal digits.
    #[arg(long)]
    id: Option<String>,
    /// What makes it the same submission if it is made again.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Waits so long for the answer, such as 30s.
    #[arg(long, value_name = "LENGTH")]
    wait: Option<humantime::Duration>,
    /// Not to be worked on before so long.
    #[arg(long, value_name = "LENGTH")]
    due_in: Option<humantime::Duration>,
    /// Of no use after so long.
    #[arg(long, value_name = "LENGTH")]
    deadline_in: Option<humantime::Duration>,
    /// For routes ordered by priority: higher goes first.
    #[arg(long)]
    priority: Option<u8>,
    /// For routes ordered by key.
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

/// A request with what happened to it.
#[derive(Serialize, Deserialize)]
struct Shown {
    request: WireRequest,
    timeline: Timeline,
}

/// What was done to one of several.
#[derive(Serialize)]
struct Treated {
    id: String,
    state: State,
}

impl Requests {
    pub(super) async fn act(self) -> anyhow::Result<()> {
        match self {
            Requests::List { filter, state, limit, reach } => {
                let page = look(&reach, async |desk| list(desk, &filter, &state, limit).await).await?;
                show::print(reach.json, &page, table)
            }
            Requests::Show { id, reach } => {
                let shown = look(&reach, async |desk| {
                    let id = whole_id(desk, &id).await?;
                    let request = desk.get(&format!("/v1/requests/{id}")).await?;
                    Ok(Shown { request, timeline: desk.get(&format!("/v1/requests/{id}/timeline")).await? })
                })
                .await?;
                show::print(reach.json, &shown, story)
            }
            Requests::Retry { ids, anew, reach } => treat(retrying(anew), &ids, &reach).await,
            Requests::Cancel { ids, reach } => treat("cancel", &ids, &reach).await,
            Requests::Submit(submit) => submit.act().await,
        }
    }
}

/// What a retry is called, which may throw answers away.
pub(super) fn retrying(anew: bool) -> &'static str {
    if anew { "rework" } else { "retry" }
}

/// A time: one that is written out, or so long ago.
pub(super) fn moment(text: &str) -> Result<u64, String> {
    let ms = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    if let Ok(length) = humantime::parse_duration(text) {
        return Ok(now_ms().saturating_sub(ms(length)));
    }
    let at = humantime::parse_rfc3339_weak(text).ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    at.map(ms).ok_or_else(|| "write a time such as 2026-01-31T12:00:00Z, or how long ago, such as 2h".to_owned())
}

async fn list(desk: &Desk, filter: &Filter, states: &[String], limit: usize) -> anyhow::Result<WirePage> {
    let mut query = ListQuery {
        route: filter.route.clone(),
        state: (!states.is_empty()).then(|| states.join(",")),
        from_ms: filter.since.map(Whole),
        to_ms: filter.until.map(Whole),
        id_prefix: filter.prefix.clone(),
        error: filter.error.clone(),
        after: None,
        limit: Some(limit.clamp(1, PAGE)),
    };
    let mut found = WirePage { requests: Vec::new(), next: None };
    loop {
        let page: WirePage = desk.find("/v1/requests", &query).await?;
        found.requests.extend(page.requests);
        found.next = page.next;
        if found.requests.len() >= limit || page.next.is_none() {
            found.requests.truncate(limit);
            if found.requests.is_empty() {
                must_exist(desk, filter.route.as_deref()).await?;
            }
            return Ok(found);
        }
        query.after = page.next.map(Whole);
    }
}

/// The id that begins like this.
pub(super) async fn whole_id(desk: &Desk, text: &str) -> anyhow::Result<String> {
    let digits = text.strip_prefix("0x").unwrap_or(text).to_ascii_lowercase();
    ensure!(
        !digits.is_empty() && digits.len() <= ID_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{text:?} is no id: write up to {ID_DIGITS} hexadecimal digits, as `roundtrip requests list` shows them"
    );
    if digits.len() == ID_DIGITS {
        return Ok(digits);
    }
    let filter = Filter { prefix: Some(digits.clone()), ..Filter::default() };
    let found = list(desk, &filter, &[], NAMED_MAX).await?.requests;
    match &found[..] {
        [] => bail!("no live request begins with {digits}: one that has ended is found by its whole id"),
        [one] => Ok(one.id.clone()),
        several => {
            let named: Vec<&str> = several.iter().map(|request| request.id.as_str()).collect();
            bail!("{digits} is ambiguous, give more digits: {}", named.join(", "))
        }
    }
}

fn table(page: &WirePage) -> String {
    let (now, mut table) = (now_ms(), Table::of(&["id", "route", "state", "age", "attempts", "detail"]));
    for request in &page.requests {
        table.row([
            short(&request.id),
            request.route.clone().unwrap_or_default(),
            word(&request.state),
            or_dash(request.admitted_at_ms.map(|at| ago(at, now))),
            or_dash(request.attempts),
            line(&detail(request)),
        ]);
    }
    let more = if page.next.is_some() { "there are more: --limit shows them\n" } else { "" };
    match page.requests.is_empty() {
        true => format!("no live request is like this\n{more}"),
        false => format!("{table}{more}"),
    }
}

/// A word of the wire.
pub(super) fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Who has it, where it is, or what went wrong.
fn detail(request: &WireRequest) -> String {
    match (&request.worker, &request.lane, &request.error) {
        (Some(worker), ..) => format!("with {worker}"),
        (_, Some(lane), _) => format!("{lane} #{}", or_dash(request.nonce)),
        (_, _, Some(error)) => format!("{}: {}", error.class, error.text),
        _ => String::new(),
    }
}

fn moment_text(moment: &WireMoment) -> String {
    match moment {
        WireMoment::At { at_ms } => time(*at_ms),
        WireMoment::Height { origin, height } => format!("block {height} of {origin}"),
        WireMoment::BlockTime { origin, block_time_ms } => {
            format!("{} by the blocks of {origin}", time(*block_time_ms))
        }
    }
}

fn story(shown: &Shown) -> String {
    let request = &shown.request;
    let mut rows = Table { rows: Vec::new() };
    let mut say = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            rows.row([name.to_owned(), value]);
        }
    };
    say("id", Some(request.id.clone()));
    say("state", Some(word(&request.state)));
    say("route", request.route.clone());
    say("generation", Some(request.generation.to_string()).filter(|_| request.generation > 0));
    say("standing", request.standing.as_ref().map(word));
    say("admitted", request.admitted_at_ms.map(time));
    say("died", request.died_at_ms.map(time));
    say("ended", request.ended_at_ms.map(time));
    say("due", request.due.as_ref().map(moment_text));
    say("deadline", request.deadline.as_ref().map(moment_text));
    say("attempts", request.attempts.map(|count| count.to_string()));
    say("crashes", request.crashes.filter(|count| *count > 0).map(|count| count.to_string()));
    say("worker", request.worker.clone());
    say("slot", request.lane.as_ref().map(|lane| format!("{lane} #{}", or_dash(request.nonce))));
    let failures = request.delivery_failures.zip(request.delivery_failed_at_ms);
    say("not taken", failures.map(|(times, at)| format!("{times}x, last at {}", time(at))));
    say("next try", request.delivery_due_at_ms.map(time));
    say("error", request.error.as_ref().map(|error| format!("{}: {}", error.class, error.text)));
    say("trace", request.trace_id.clone());
    say("payload", request.payload.as_ref().map(|payload| payload.get().to_owned()));
    say("response", request.response.as_ref().map(|response| response.get().to_owned()));
    let mut happened = Table::of(&["at", "event", "detail"]);
    for entry in &shown.timeline.entries {
        let slot = entry.nonce.map(|nonce| format!("{}#{nonce}", spaced(entry.lane.as_deref())));
        let fee = entry.fee_most.as_ref().map(|fee| format!("at most {fee} wei a gas"));
        let cancels = (entry.carries == Some(false)).then(|| "carries nothing".to_owned());
        let block = entry.block.map(|height| format!("block {height}"));
        let told = [slot, entry.transaction.clone(), block, fee, cancels, entry.detail.as_deref().map(line)];
        let told: Vec<String> = told.into_iter().flatten().collect();
        happened.row([time(entry.at_ms), entry.event.to_string(), told.join(", ")]);
    }
    match shown.timeline.entries.is_empty() {
        true => format!("{rows}\nthe journal holds nothing of it any longer\n"),
        false => format!("{rows}\n{happened}"),
    }
}

/// A word with a space after it, if there is one.
fn spaced(word: Option<&str>) -> String {
    word.map(|word| format!("{word} ")).unwrap_or_default()
}

/// Does the same to several, one after the other; stops at the first that is refused.
async fn treat(remedy: &str, ids: &[String], reach: &Reach) -> anyhow::Result<()> {
    let treated = desk::order(reach, async |desk| {
        let mut treated = Vec::new();
        for id in ids {
            let id = whole_id(desk, id).await?;
            let done: anyhow::Result<Mended> = desk.post(&format!("/v1/requests/{id}/{remedy}"), &Value::Null).await;
            let done = done.with_context(|| match treated.len() {
                0 => format!("{remedy} {id}"),
                before => format!("{remedy} {id} ({before} before it are done)"),
            })?;
            treated.push(Treated { id, state: done.state });
        }
        Ok(treated)
    })
    .await?;
    show::print(reach.json, &treated, |treated| {
        treated.iter().map(|one| format!("{} is {} now\n", one.id, word(&one.state))).collect()
    })
}

impl Submit {
    async fn act(self) -> anyhow::Result<()> {
        let payload = self.payload()?;
        let ahead = |length: Option<humantime::Duration>| {
            length.map(|length| now_ms().saturating_add(u64::try_from(length.as_millis()).unwrap_or(u64::MAX)))
        };
        let query = SubmitQuery {
            id: self.id.clone(),
            wait: self.wait.map(|wait| wait.to_string()),
            due_ms: ahead(self.due_in).map(Whole),
            deadline_ms: ahead(self.deadline_in).map(Whole),
            priority: self.priority,
            key: self.key.clone(),
        };
        let path = format!("/v1/routes/{}/requests?{}", segment(&self.route)?, serde_urlencoded::to_string(&query)?);
        let kind = if self.raw { "application/octet-stream" } else { "application/json" };
        let mut headers = vec![("content-type", kind)];
        headers.extend(self.idempotency_key.as_deref().map(|key| ("idempotency-key", key)));
        let (json, waits) = (self.reach.json, self.wait.is_some());
        desk::order(&self.reach, async |desk| {
            let said = desk.call(Method::POST, &path, &headers, payload).await?;
            let place = desk.place().to_owned();
            match waits {
                true => {
                    let request = desk.read::<WireRequest>(said)?;
                    let done = request.response.is_some() || word(&request.state) == "settled";
                    // What is no answer must not stand where a script reads one.
                    ensure!(done || json, "{}", answered(&request).trim_end());
                    show::print(json, &request, answered)?;
                    ensure!(done, "{}", answered(&request).trim_end());
                    Ok(())
                }
                false => show::print(json, &desk.read::<Accepted>(said)?, |accepted| {
                    format!("{} {}, at {place}\n", accepted.id, accepted.admission)
                }),
            }
        })
        .await
    }

    fn payload(&self) -> anyhow::Result<Bytes> {
        let bytes = match (&self.payload, &self.file) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(file)) => std::fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?,
            (None, None) => {
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).context("standard input cannot be read")?;
                bytes
            }
        };
        Ok(bytes.into())
    }
}

/// The answer, or how far the request is.
fn answered(request: &WireRequest) -> String {
    match (&request.response, &request.error) {
        (Some(response), _) => format!("{}\n", response.get()),
        (None, Some(error)) => format!("{} is {}: {}\n", request.id, word(&request.state), error.text),
        (None, None) => format!("{} is {}\n", request.id, word(&request.state)),
    }
}

/// A name as a part of a path.
pub(super) fn segment(name: &str) -> anyhow::Result<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~@:".contains(&byte);
    ensure!(!name.is_empty() && name.bytes().all(plain), "{name:?} is no name");
    Ok(name)
}

/// For how long something lasts, in words.
pub(super) fn lasts(ms: Option<u64>) -> String {
    or_dash(ms.map(length))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_time_is_written_out_or_so_long_ago() {
        assert_eq!(moment("1970-01-02T00:00:00Z").unwrap(), 86_400_000);
        let hour_ago = now_ms() - 3_600_000;
        assert!(moment("1h").unwrap().abs_diff(hour_ago) < 60_000);
        assert!(moment("yesterday").is_err());
    }
}
