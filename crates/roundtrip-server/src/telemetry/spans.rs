//! Which spans a step is: pure functions from what happened to what is exported.
//!
//! ```text
//!   the caller's span, if there is one
//!   └─ request ROUTE ─────────────────────────────────────── from admission to end
//!      ├─ admitted ├─ leased ├─ answered ├─ assigned ├─ mined ├─ confirmed ├─ settled
//! ```
//!
//! The span of a request is made of its id, so every process hangs its steps under it without
//! being told of it. Whoever sees the end exports it. A step's span covers the time since the
//! step before it, if this process made that one too, and is a point in time otherwise.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{Span, Status, status::StatusCode};
use roundtrip::inbox::End;
use roundtrip::store::witness::RequestStep;
use roundtrip::trace::{SpanId, TraceContext};
use roundtrip::words::{RequestId, RouteName, UnixMs};

/// A step of a request, and whose trace it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Step<'a> {
    pub(super) id: RequestId,
    pub(super) generation: u32,
    pub(super) route: &'a RouteName,
    pub(super) admitted_at: UnixMs,
    /// When this process made the step before, if it did.
    pub(super) since: Option<UnixMs>,
    pub(super) at: UnixMs,
    pub(super) step: &'a RequestStep,
}

/// An attempt to deliver an answer.
#[derive(Clone, Debug)]
pub(super) struct Delivery<'a> {
    pub(super) id: RequestId,
    pub(super) generation: u32,
    pub(super) route: &'a RouteName,
    pub(super) destination: &'a str,
    pub(super) result: &'static str,
    pub(super) from: UnixMs,
    pub(super) to: UnixMs,
}

/// The name of a step, if it has a span.
fn name(step: &RequestStep) -> Option<&'static str> {
    Some(match step {
        RequestStep::Admitted => "admitted",
        RequestStep::Finalized => "finalized",
        RequestStep::Superseded => "superseded",
        RequestStep::Leased { .. } => "leased",
        RequestStep::Released => "released",
        RequestStep::Failed(_) => "failed",
        RequestStep::Answered => "answered",
        RequestStep::Assigned(_) => "assigned",
        RequestStep::Mined => "mined",
        RequestStep::Confirmed => "confirmed",
        RequestStep::Unmined => "unmined",
        RequestStep::Returned => "returned",
        RequestStep::Published => "delivered",
        RequestStep::Replaced => "replaced",
        RequestStep::Died => "died",
        RequestStep::Rearmed => "rearmed",
        RequestStep::Ended(end) => end.kind().word(),
        // It has an admission of its own to be found by.
        RequestStep::Repeated => return None,
    })
}

/// The spans of a step: its own, and that of the request if it has ended.
pub(super) fn of_step(context: &TraceContext, step: &Step<'_>) -> Vec<Span> {
    let Some(name) = name(step.step) else { return Vec::new() };
    let root = SpanId::of_request(&step.id, step.generation);
    let mut attributes = about(&step.id, step.route);
    match step.step {
        RequestStep::Leased { attempt } => attributes.push(text("roundtrip.attempt", attempt.to_string())),
        RequestStep::Assigned(lane) => attributes.push(text("roundtrip.lane", lane.to_string())),
        RequestStep::Failed(class) => attributes.push(text("roundtrip.error.class", class.word().to_owned())),
        _ => {}
    }
    let bad = match step.step {
        RequestStep::Failed(_) | RequestStep::Died => true,
        RequestStep::Ended(end) => *end != End::Settled,
        _ => false,
    };
    let own = Span {
        trace_id: context.trace.0.to_vec(),
        span_id: SpanId::of_step(&root, name, step.at).0.to_vec(),
        parent_span_id: root.0.to_vec(),
        name: name.to_owned(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: nanos(since(step)),
        end_time_unix_nano: nanos(step.at),
        attributes,
        status: bad.then(failed),
        ..Span::default()
    };
    let RequestStep::Ended(end) = step.step else { return vec![own] };
    let mut attributes = about(&step.id, step.route);
    attributes.push(text("roundtrip.end", end.kind().word().to_owned()));
    let parent = Some(context.span).filter(|parent| *parent != SpanId::of_request(&step.id, 0));
    let whole = Span {
        span_id: root.0.to_vec(),
        parent_span_id: parent.map_or(Vec::new(), |parent| parent.0.to_vec()),
        name: format!("request {}", step.route),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanos(step.admitted_at),
        attributes,
        ..own.clone()
    };
    vec![own, whole]
}

/// From when on a step's span is.
fn since(step: &Step<'_>) -> UnixMs {
    let known = match step.step {
        // Before the first attempt it waited since it came in, whoever admitted it.
        RequestStep::Leased { attempt: 1 } => Some(step.admitted_at),
        _ => step.since,
    };
    known.unwrap_or(step.at).min(step.at)
}

/// The span of an attempt to deliver.
pub(super) fn of_delivery(context: &TraceContext, delivery: &Delivery<'_>) -> Span {
    let root = SpanId::of_request(&delivery.id, delivery.generation);
    let mut attributes = about(&delivery.id, delivery.route);
    attributes.push(text("roundtrip.destination", delivery.destination.to_owned()));
    attributes.push(text("roundtrip.result", delivery.result.to_owned()));
    Span {
        trace_id: context.trace.0.to_vec(),
        span_id: SpanId::of_step(&root, "deliver", delivery.from).0.to_vec(),
        parent_span_id: root.0.to_vec(),
        name: "deliver".to_owned(),
        kind: SpanKind::Client.into(),
        start_time_unix_nano: nanos(delivery.from),
        end_time_unix_nano: nanos(delivery.to),
        attributes,
        status: (delivery.result != "delivered").then(failed),
        ..Span::default()
    }
}

fn failed() -> Status {
    Status { message: String::new(), code: StatusCode::Error.into() }
}

fn about(id: &RequestId, route: &RouteName) -> Vec<KeyValue> {
    vec![text("roundtrip.request", id.to_string()), text("roundtrip.route", route.to_string())]
}

/// An attribute.
pub(super) fn text(key: &str, value: String) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(Value::StringValue(value)) }),
        ..KeyValue::default()
    }
}

fn nanos(at: UnixMs) -> u64 {
    at.0.saturating_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn spans(given: Option<&str>, step: RequestStep, since: Option<u64>) -> Vec<Span> {
        let (id, route) = (RequestId([7; 32]), RouteName::new("r").unwrap());
        let since = since.map(UnixMs);
        let step =
            Step { id, generation: 0, route: &route, admitted_at: UnixMs(10), since, at: UnixMs(50), step: &step };
        of_step(&TraceContext::of(&id, given), &step)
    }

    fn times(span: &Span) -> (u64, u64) {
        (span.start_time_unix_nano / 1_000_000, span.end_time_unix_nano / 1_000_000)
    }

    #[test]
    fn a_step_covers_the_time_since_the_one_before_if_that_is_known() {
        let cases = [
            (RequestStep::Admitted, None, (50, 50)),
            (RequestStep::Leased { attempt: 1 }, None, (10, 50)),
            (RequestStep::Leased { attempt: 2 }, None, (50, 50)),
            (RequestStep::Answered, Some(30), (30, 50)),
            (RequestStep::Answered, None, (50, 50)),
            (RequestStep::Answered, Some(60), (50, 50)),
        ];
        for (step, since, expected) in cases {
            let made = spans(None, step.clone(), since);
            assert_eq!((made.len(), times(&made[0])), (1, expected), "{step:?}");
        }
        assert!(spans(None, RequestStep::Repeated, None).is_empty());
    }

    #[test]
    fn the_end_brings_the_span_of_the_request_under_that_of_its_caller() {
        let [own, whole] =
            <[Span; 2]>::try_from(spans(Some(GIVEN), RequestStep::Ended(End::Settled), Some(40))).unwrap();
        assert_eq!((own.name.as_str(), whole.name.as_str()), ("settled", "request r"));
        assert_eq!((times(&own), times(&whole)), ((40, 50), (10, 50)));
        assert_eq!(own.parent_span_id, whole.span_id);
        let given = TraceContext::parse(GIVEN).unwrap();
        assert_eq!((&whole.trace_id[..], &whole.parent_span_id[..]), (&given.trace.0[..], &given.span.0[..]));
        assert_eq!(whole.status, None);
        let [_, whole] = <[Span; 2]>::try_from(spans(None, RequestStep::Ended(End::Expired), None)).unwrap();
        assert!(whole.parent_span_id.is_empty(), "nobody called");
        assert_eq!(whole.status.unwrap().code, i32::from(StatusCode::Error));
    }
}
