//! Dead letters together: what they died of, and many of them mended in one go.
//!
//! ```text
//!   filter ──▶ GET: how many, of which causes, up to which place ──▶ POST retry or drop, page by page
//! ```
//!
//! Failure modes: a call that was cut off has done some pages; the same call does the rest, and
//! what is no dead letter any longer is passed over.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::{Extension, Json};
use roundtrip::inbox::StateKind;
use roundtrip::store::ReadExt;
use roundtrip::store::op::{Mend, Op, Remedy};
use roundtrip::store::query::{ListFilter, Phase, RequestView};
use roundtrip::words::{PAGE_MAX, RouteName, Seq, UnixMs};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::auth::Caller;
use super::body::{Whole, at_most};
use super::path::Path;
use super::problem::Problem;
use super::requests::Prefix;
use super::views::WireError;

/// Most pages that one look reads.
const PAGES_MAX: usize = 50;
/// Most causes that are told apart in one answer.
const CAUSES_MAX: usize = 100;
/// Longest cause, in characters.
const CAUSE_CHARS_MAX: usize = 200;
/// From how many hexadecimal digits on a word is an id or a hash.
const HASH_DIGITS_MIN: usize = 16;

/// Which dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DeadFilter {
    /// Only of this route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Only of this cause, as a look at them names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Only those that have an answer which could not be delivered, or only those without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<bool>,
    /// Only those whose error contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only those that came in at this time or later, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<Whole>,
    /// Only those that came in before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ms: Option<Whole>,
    /// Only ids that begin with these hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// Only those up to this place in the order of admission: what an earlier look has shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<Whole>,
}

/// Dead letters, by what they died of.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadPreview {
    /// How many there are.
    pub total: u64,
    /// The causes, most frequent first.
    pub causes: Vec<WireCause>,
    /// How many have a cause that is not among these.
    pub others: u64,
    /// The place of the last of them in the order of admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u64>,
    /// Whether there are more than were looked at.
    pub more: bool,
}

/// What dead letters of a route died of. Numbers and hashes are left out of it, so that what
/// differs in nothing else is one; but for the status that somebody answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireCause {
    /// Which route.
    pub route: String,
    /// `transport`, `retryable`, `fatal` or `crash`.
    pub class: Cow<'static, str>,
    /// The cause.
    pub cause: String,
    /// Whether they have an answer that could not be delivered.
    pub answered: bool,
    /// How many.
    pub requests: u64,
    /// When the oldest of them came in, in milliseconds since 1970.
    pub oldest_at_ms: u64,
    /// When the newest did.
    pub newest_at_ms: u64,
    /// One of them.
    pub example: String,
    /// What is said of that one.
    pub text: String,
}

/// What is done with many dead letters.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DeadCall {
    /// With which.
    pub filter: DeadFilter,
    /// With all, where the filter names nothing.
    pub all: bool,
    /// What the call before said is next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Whole>,
    /// With so many at the most, in this call; 1000 if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub limit: Option<usize>,
}

/// What became of them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadMended {
    /// With how many it is done.
    pub done: u64,
    /// How many were no dead letters any longer, or may not be reworked now.
    pub passed_over: u64,
    /// What to give as `after` in the next call; none when all is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl DeadFilter {
    /// Whether it names anything that dead letters have in common.
    fn is_open(&self) -> bool {
        DeadFilter { up_to: None, ..self.clone() } == DeadFilter::default()
    }

    fn list(&self, after: Option<Seq>, limit: usize) -> Result<ListFilter, Problem> {
        Ok(ListFilter {
            route: self.route.as_deref().map(RouteName::new).transpose()?,
            states: vec![StateKind::Dead],
            from: self.from_ms.map(|Whole(ms)| UnixMs(ms)),
            to: self.to_ms.map(|Whole(ms)| UnixMs(ms)),
            id_prefix: self.prefix()?.bytes,
            error_text: self.error.clone(),
            after,
            limit,
        })
    }

    fn prefix(&self) -> Result<Prefix, Problem> {
        Ok(self.id_prefix.as_deref().map(str::parse::<Prefix>).transpose()?.unwrap_or_default())
    }

    /// Whether a letter is one of them, as far as a list cannot tell.
    fn fits(&self, letter: &RequestView) -> bool {
        self.prefix().is_ok_and(|prefix| prefix.fits(&letter.id))
            && self.up_to.is_none_or(|up_to| letter.seq.0 <= up_to.0)
            && self.cause.as_ref().is_none_or(|cause| *cause == cause_of(error_text(letter)))
            && self.answered.is_none_or(|answered| answered == has_answer(letter))
    }

    /// Whether no letter from this place on is one of them.
    fn ends_before(&self, place: Seq) -> bool {
        self.up_to.is_some_and(|up_to| place.0 >= up_to.0)
    }
}

/// Whether what it waits for is a delivery: it has an answer.
fn has_answer(letter: &RequestView) -> bool {
    matches!(letter.phase, Phase::Dead { answered: true, .. })
}

fn error_text(letter: &RequestView) -> &str {
    letter.error.as_ref().map_or("", |error| &error.text)
}

/// An error without what differs from one request to the next: numbers, ids and hashes. A status
/// that was answered is what went wrong.
fn cause_of(text: &str) -> String {
    let (mut cause, mut before) = (String::new(), "");
    for (place, word) in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()).enumerate() {
        let (word, end) = match word.char_indices().next_back() {
            Some((at, last)) if !last.is_ascii_alphanumeric() => word.split_at(at),
            _ => (word, ""),
        };
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_status = is_number && word.len() == 3 && before == "answered";
        match () {
            () if is_status => cause.push_str(word),
            () if is_number || is_hex && (digits.len() < word.len() || digits.len() >= HASH_DIGITS_MIN) => {
                cause.push('…');
            }
            () => cause.push_str(word),
        }
        cause.push_str(end);
        before = word;
        // Every word takes at least one character.
        if place >= CAUSE_CHARS_MAX {
            break;
        }
    }
    cause.chars().take(CAUSE_CHARS_MAX).collect()
}

/// Letters by route, class and cause, as they pass in the order of admission.
#[derive(Default)]
struct Causes(BTreeMap<(String, bool, Cow<'static, str>, String), WireCause>);

impl Causes {
    fn see(&mut self, letter: &RequestView) {
        let (route, answered, cause) = (letter.route.to_string(), has_answer(letter), cause_of(error_text(letter)));
        let at = letter.admitted_at.0;
        let WireError { class, text } = match &letter.error {
            Some(error) => error.into(),
            None => WireError { class: "fatal".into(), text: String::new() },
        };
        let key = (route.clone(), answered, class.clone(), cause.clone());
        let first = || WireCause {
            route,
            class,
            cause,
            answered,
            requests: 0,
            oldest_at_ms: at,
            newest_at_ms: at,
            example: letter.id.to_string(),
            text,
        };
        let seen = self.0.entry(key).or_insert_with(first);
        seen.requests += 1;
        (seen.oldest_at_ms, seen.newest_at_ms) = (seen.oldest_at_ms.min(at), seen.newest_at_ms.max(at));
    }

    /// The most frequent ones, and how many letters have others.
    fn most(self) -> (Vec<WireCause>, u64) {
        let mut causes: Vec<WireCause> = self.0.into_values().collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.requests));
        let others = causes.iter().skip(CAUSES_MAX).map(|cause| cause.requests).sum();
        causes.truncate(CAUSES_MAX);
        (causes, others)
    }
}

/// How many dead letters there are, and what they died of.
#[utoipa::path(
    get, path = "/v1/dead", tag = "watch", params(DeadFilter),
    responses(
        (status = 200, description = "The causes.", body = DeadPreview),
        Problem,
    ),
)]
pub(super) async fn dead(
    State(api): State<Api>,
    query: Result<Query<DeadFilter>, QueryRejection>,
) -> Result<Json<DeadPreview>, Problem> {
    let Query(filter) = query?;
    let (mut causes, mut total, mut up_to, mut after) = (Causes::default(), 0, None, None);
    for _ in 0..PAGES_MAX {
        let page = api.store.list(filter.list(after, PAGE_MAX)?).await?;
        for letter in page.requests.iter().filter(|letter| filter.fits(letter)) {
            causes.see(letter);
            (total, up_to) = (total + 1, Some(letter.seq.0));
        }
        after = page.next.filter(|next| !filter.ends_before(*next));
        if after.is_none() {
            break;
        }
    }
    let (causes, others) = causes.most();
    Ok(Json(DeadPreview { total, causes, others, up_to, more: after.is_some() }))
}

/// What is done to dead letters.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeadRemedy {
    /// They are worked on again, from their first attempt; those that have an answer are sent again.
    Retry,
    /// They are worked on again, from their first attempt, and the answers that they have are thrown away.
    Rework,
    /// They end for good.
    Drop,
}

/// Retries, reworks or drops many dead letters, a page of them in a call: go on with `after` until there is
/// no `next`. A filter that names nothing needs `all`.
#[utoipa::path(
    post, path = "/v1/dead/{remedy}", tag = "operations",
    params(("remedy" = inline(DeadRemedy), Path, description = "What is done.")),
    request_body = DeadCall,
    responses(
        (status = 200, description = "A page is done.", body = DeadMended),
        Problem,
    ),
)]
pub(super) async fn mend_dead(
    State(api): State<Api>,
    Path(remedy): Path<DeadRemedy>,
    Extension(caller): Extension<Caller>,
    call: Result<Json<DeadCall>, JsonRejection>,
) -> Result<Json<DeadMended>, Problem> {
    let Json(DeadCall { filter, all, after, limit }) = call?;
    let (what, called) = match remedy {
        DeadRemedy::Retry => (Remedy::Retry, "retry"),
        DeadRemedy::Rework => (Remedy::Rework, "rework"),
        DeadRemedy::Drop => (Remedy::Drop, "drop"),
    };
    if filter.is_open() && !all {
        return Err(Problem::unprocessable("the filter names nothing: narrow it, or say `all`"));
    }
    let limit = at_most(limit, PAGE_MAX, PAGE_MAX)?;
    let page = api.store.list(filter.list(after.map(|Whole(after)| Seq(after)), limit)?).await?;
    let letters = page.requests.iter().filter(|letter| filter.fits(letter));
    let mends: Vec<Op> = letters.map(|letter| Op::Mend(Mend { id: letter.id, remedy: what })).collect();
    let asked = mends.len() as u64;
    let outcomes = if mends.is_empty() { Vec::new() } else { api.store.apply(mends).await? };
    let done = outcomes.iter().filter(|outcome| outcome.holds()).count() as u64;
    super::audit(&caller, called, &format!("{done} dead letters"), done == asked);
    let next = page.next.filter(|next| !filter.ends_before(*next)).map(|next| next.0);
    Ok(Json(DeadMended { done, passed_over: asked - done, next }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_in_numbers_alone_is_one_cause() {
        let check = |text: &str, cause: &str| assert_eq!(cause_of(text), cause);
        check("", "");
        check("no route to host", "no route to host");
        check("HTTP 503 after 12 ms", "HTTP … after … ms");
        check("revert of 0x1a2b at block 7: AlreadyAnswered(42)", "revert of … at block …: AlreadyAnswered(…)");
        check("request 00ff00ff00ff00ff00ff is gone", "request … is gone");
        check("ein Fehler über 7 €", "ein Fehler über … €");
        check("the tool answered 404: no user 7", "the tool answered 404: no user …");
        check("the source answered 1234, and 500 before", "the source answered …, and … before");
        check("v2 has no field add", "v2 has no field add");
        assert_eq!(cause_of(&"ab ".repeat(1000)).chars().count(), CAUSE_CHARS_MAX);
    }

    #[test]
    fn a_filter_is_open_unless_it_names_what_letters_have_in_common() {
        assert!(
            DeadFilter::default().is_open() && DeadFilter { up_to: Some(Whole(7)), ..DeadFilter::default() }.is_open()
        );
        assert!(!DeadFilter { route: Some("a".to_owned()), ..DeadFilter::default() }.is_open());
    }
}
