//! What is said on the stream, as operations; and what became of them, as messages.

use roundtrip::inbox::Standing;
use roundtrip::store::op::{self, Grant, Notice, Op};
use roundtrip::words::{
    BATCH_BYTES_MAX, BATCH_OPS_MAX, BATCH_RECORDS_MAX, Encoding, Moment, Payload, RequestId, Token,
};
use roundtrip_wire::v1::{self, FromWorker, Held, moment::When};
use serde::de::IgnoredAny;

use crate::api::work::{self, Told, Verdict};

/// Largest message of jobs, if there is more than one in it.
const LETTER_BYTES_MAX: usize = 2 << 20;
/// What a job takes beside its payload, about.
const JOB_BYTES: usize = 256;

/// What a worker said about a job.
pub(super) struct Said {
    pub(super) held: Held,
    /// What it comes to, or why it makes no sense.
    pub(super) op: Result<Op, String>,
}

impl Said {
    /// Bytes of payloads in it.
    pub(super) fn payload_bytes(&self) -> usize {
        self.op.as_ref().map_or(0, Op::payload_bytes)
    }
}

/// What a message says, one by one.
pub(super) fn said(message: FromWorker) -> Vec<Said> {
    let FromWorker { open: _, room: _, extend, answer, fail, release } = message;
    let extends = extend
        .into_iter()
        .map(|held| about(Some(held), |id, token| Ok(op::Extend { id, token, lease_ms: None }.into())));
    let releases = release
        .into_iter()
        .map(|held| about(Some(held), |id, token| Ok(op::Release { id, token, after_ms: 0 }.into())));
    let answers = answer.into_iter().map(|answer| {
        let v1::Answer { held, response, follow_ups, items } = answer;
        about(held, |id, token| {
            let follow_up =
                |new: v1::FollowUp| work::follow_up(&new.route, payload(new.payload)?).map_err(|e| e.to_string());
            let follow_ups = follow_ups.into_iter().map(follow_up).collect::<Result<_, _>>()?;
            let item = |new: v1::Item| work::item(&new.group, payload(new.payload)?).map_err(|e| e.to_string());
            let items = items.into_iter().map(item).collect::<Result<_, _>>()?;
            Ok(op::Answer { id, token, response: payload(response)?, follow_ups, items }.into())
        })
    });
    let failures = fail.into_iter().map(|failure| {
        let v1::Failure { held, error, dead, transport, after_ms, response, elsewhere } = failure;
        about(held, |id, token| {
            let then = match () {
                () if elsewhere => op::Verdict::Elsewhere,
                () if dead => {
                    op::Verdict::Dead { response: response.map(|response| payload(Some(response))).transpose()? }
                }
                () => op::Verdict::Retry { after_ms },
            };
            let (error, verdict) = work::failure(&error, transport, then);
            Ok(op::Fail { id, token, error, verdict }.into())
        })
    });
    answers.chain(failures).chain(releases).chain(extends).collect()
}

fn about(held: Option<Held>, op: impl FnOnce(RequestId, Token) -> Result<Op, String>) -> Said {
    let held = held.unwrap_or_default();
    let read = |held: &Held| Ok((held.id.parse()?, held.token.parse()?));
    let op = read(&held)
        .map_err(|error: roundtrip::words::ParseError| error.to_string())
        .and_then(|(id, token)| op(id, token));
    Said { held, op }
}

/// A payload as it came.
fn payload(payload: Option<v1::Payload>) -> Result<Payload, String> {
    let v1::Payload { encoding, bytes } = payload.ok_or("a payload is missing")?;
    let encoding = v1::Encoding::try_from(encoding).map_err(|error| error.to_string())?;
    let encoding = match encoding {
        v1::Encoding::Json => Encoding::Json,
        v1::Encoding::Raw => Encoding::Raw,
        v1::Encoding::Cbor => Encoding::Cbor,
        v1::Encoding::Protobuf => Encoding::Protobuf,
    };
    if encoding == Encoding::Json {
        serde_json::from_slice::<IgnoredAny>(&bytes).map_err(|error| format!("this is no JSON: {error}"))?;
    }
    Ok(Payload { encoding, bytes })
}

/// Splits what was said into what fits into one commit each.
pub(super) fn handfuls(all: Vec<Said>) -> Vec<Vec<Said>> {
    let mut handfuls: Vec<Vec<Said>> = Vec::new();
    let (mut bytes, mut records) = (0, 0);
    for said in all {
        let (more_bytes, more_records) = said.op.as_ref().map_or((0, 0), |op| (op.payload_bytes(), op.records()));
        (bytes, records) = (bytes + more_bytes, records + more_records);
        match handfuls.last_mut() {
            Some(last) if last.len() < BATCH_OPS_MAX && bytes <= BATCH_BYTES_MAX && records <= BATCH_RECORDS_MAX => {
                last.push(said);
            }
            _ => {
                (bytes, records) = (more_bytes, more_records);
                handfuls.push(vec![said]);
            }
        }
    }
    handfuls
}

/// What became of it.
pub(super) fn result(held: Held, told: Told) -> v1::Result {
    let verdict = match told.verdict {
        Verdict::Done => v1::Verdict::Done,
        Verdict::Superseded => v1::Verdict::Superseded,
        Verdict::Lost => v1::Verdict::Lost,
        Verdict::Unknown => v1::Verdict::Unknown,
        Verdict::Invalid => v1::Verdict::Invalid,
        Verdict::Full => v1::Verdict::Full,
    };
    let notice = |notice: Notice| match notice {
        Notice::Finalized => v1::Notice::Finalized.into(),
        Notice::Orphaned => v1::Notice::Orphaned.into(),
        Notice::Included => v1::Notice::Included.into(),
        Notice::Superseded => v1::Notice::Superseded.into(),
    };
    v1::Result {
        held: Some(held),
        verdict: verdict.into(),
        until_ms: told.until.map(|until| until.0),
        notices: told.notices.into_iter().map(notice).collect(),
        detail: told.detail.unwrap_or_default(),
    }
}

/// That it makes no sense.
pub(super) fn senseless(held: Held, why: String) -> v1::Result {
    result(held, Told { verdict: Verdict::Invalid, detail: Some(why), ..Told::default() })
}

/// Puts jobs together so that no message is larger than workers in any language take without being
/// told to: many of them stop at four megabytes.
pub(super) fn letters(grants: Vec<Grant>) -> Vec<Vec<v1::Job>> {
    let mut letters: Vec<Vec<v1::Job>> = Vec::new();
    let mut bytes = 0;
    for grant in grants {
        let more = grant.payload.bytes.len() + JOB_BYTES;
        bytes += more;
        match letters.last_mut() {
            Some(last) if bytes <= LETTER_BYTES_MAX => last.push(job(grant)),
            _ => {
                bytes = more;
                letters.push(vec![job(grant)]);
            }
        }
    }
    letters
}

/// A request, on its way to a worker.
fn job(grant: Grant) -> v1::Job {
    let standing = match grant.standing {
        Standing::Seen => v1::Standing::Seen,
        Standing::Final => v1::Standing::Final,
        Standing::Orphaned => v1::Standing::Orphaned,
    };
    let encoding = match grant.payload.encoding {
        Encoding::Json => v1::Encoding::Json,
        Encoding::Raw => v1::Encoding::Raw,
        Encoding::Cbor => v1::Encoding::Cbor,
        Encoding::Protobuf => v1::Encoding::Protobuf,
    };
    v1::Job {
        held: Some(Held { id: grant.id.to_string(), token: grant.token.to_string(), tag: 0 }),
        until_ms: grant.until.0,
        attempt: grant.attempt.into(),
        generation: grant.generation,
        revision: grant.revision.into(),
        standing: standing.into(),
        payload: Some(v1::Payload { encoding: encoding.into(), bytes: grant.payload.bytes }),
        trace: grant.trace.map(String::from),
        deadline: grant.deadline.map(moment),
    }
}

fn moment(moment: Moment) -> v1::Moment {
    let of = |origin: roundtrip::words::OriginName, value| v1::OfOrigin { origin: origin.to_string(), value };
    let when = match moment {
        Moment::At(at) => When::AtMs(at.0),
        Moment::Height(place) => When::Height(of(place.origin, place.height.0)),
        Moment::BlockTime { origin, at } => When::BlockTimeMs(of(origin, at.0)),
    };
    v1::Moment { when: Some(when) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use bytes::Bytes;

    use super::*;

    fn held(tag: u64) -> Held {
        Held { id: "ab".repeat(32), token: "1-2".to_owned(), tag }
    }

    fn json(text: &'static str) -> Option<v1::Payload> {
        Some(v1::Payload { encoding: v1::Encoding::Json.into(), bytes: Bytes::from_static(text.as_bytes()) })
    }

    #[test]
    fn what_is_said_becomes_operations_and_what_makes_no_sense_is_told() {
        let message = FromWorker {
            extend: vec![held(1)],
            answer: vec![
                v1::Answer { held: Some(held(2)), response: json("{}"), ..v1::Answer::default() },
                v1::Answer { held: Some(held(3)), response: json("{"), ..v1::Answer::default() },
                v1::Answer { held: Some(held(4)), response: None, ..v1::Answer::default() },
            ],
            fail: vec![v1::Failure {
                held: Some(held(5)),
                error: "no".to_owned(),
                dead: true,
                ..v1::Failure::default()
            }],
            release: vec![held(6), Held { tag: 7, ..Held::default() }],
            ..FromWorker::default()
        };
        let sense: Vec<(u64, bool)> = said(message).iter().map(|said| (said.held.tag, said.op.is_ok())).collect();
        assert_eq!(sense, [(2, true), (3, false), (4, false), (5, true), (6, true), (7, false), (1, true)]);
    }

    #[test]
    fn no_handful_is_more_than_one_commit_takes() {
        let answer = |bytes: usize| Said {
            held: held(0),
            op: Ok(op::Answer {
                id: held(0).id.parse().unwrap(),
                token: held(0).token.parse().unwrap(),
                response: Payload::raw(vec![0; bytes]),
                follow_ups: Vec::new(),
                items: Vec::new(),
            }
            .into()),
        };
        let sizes = |all: Vec<Said>| handfuls(all).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(Vec::new()), [0; 0]);
        assert_eq!(sizes((0..BATCH_OPS_MAX + 1).map(|_| answer(1)).collect()), [BATCH_OPS_MAX, 1]);
        let third = BATCH_BYTES_MAX / 3;
        assert_eq!(sizes((0..5).map(|_| answer(third)).collect()), [3, 2]);
    }
}
