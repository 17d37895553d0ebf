//! `identity`: what makes it the same request, checked wherever content comes in.

use crate::inbox::{FieldPath, Identity, IdentityError, StateKind};
use crate::store::op::{Admission, Admit, Amendment, Answer, Close, Effect, Invalid, NewRequest, Op, Outcome, Seat};
use crate::store::policy::RoutePolicy;
use crate::testkit::bench::Bench;
use crate::testkit::samples::*;
use crate::words::{Payload, RequestId};

fn path(text: &str) -> FieldPath {
    FieldPath::new(text).unwrap_or_else(|error| panic!("{error}"))
}

/// A request with this JSON, under the id that the identity gives it.
fn asking(identity: &Identity, occurrence_no: u64, json: &'static str) -> NewRequest {
    let payload = Payload::json(json);
    let id = match identity.id_of(&route(), &payload) {
        Ok(Some(id)) => id,
        other => panic!("{json} has no id: {other:?}"),
    };
    NewRequest { id, payload, occurrence: occurrence(occurrence_no), ..final_request(occurrence_no) }
}

/// Any id will do, unless the route says otherwise; then it must be the hash, also on
/// follow-ups, on what refers to a group, and on content that supersedes.
pub async fn an_id_that_is_not_the_hash_is_refused(bench: Bench) {
    let content = Identity::Content;
    bench.define(policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    bench.define(RoutePolicy { identity: content.clone(), ..policy() }).await;
    let hash = asking(&content, 2, r#"{"a":1}"#);
    let wrong = NewRequest { id: id(2), ..hash.clone() };
    let refused = || Outcome::Invalid(Invalid::IdIsNotTheHash { given: id(2), hash: hash.id });
    let admit = |new: &NewRequest| Op::Admit(Admit { cursor: None, requests: vec![new.clone()] });
    assert_eq!(bench.apply(admit(&wrong)).await, refused());
    let with_follow_up = |new: &NewRequest| Answer { follow_ups: vec![new.clone()], ..answer(&grant) };
    assert_eq!(bench.apply(with_follow_up(&wrong)).await, refused());
    assert_eq!(bench.apply(Close { group: group(), request: wrong.clone() }).await, refused());
    assert_eq!((bench.found(2).await, bench.state(1).await), (None, Some(StateKind::Leased)));

    assert_eq!(bench.applied(with_follow_up(&hash)).await, Effect::Now(StateKind::Waiting));
    let known = bench.admit(vec![hash.clone()]).await;
    assert!(matches!(known[..], [Admission::Known { .. }]), "{known:?}");
    let lead = bench.lead(Seat::Route(route())).await;
    let payload = Payload::json(r#"{"a":2}"#);
    let change = Amendment::Supersede { id: hash.id, occurrence: occurrence(5), place: None, payload, deadline: None };
    let refused = bench.apply(amend(lead, change)).await;
    assert!(matches!(refused, Outcome::Invalid(Invalid::IdIsNotTheHash { .. })), "{refused:?}");
}

/// The form of JSON does not make it another request; other bytes do.
pub async fn the_same_content_is_the_same_request(bench: Bench) {
    let content = Identity::Content;
    bench.define(RoutePolicy { identity: content.clone(), capacity: 2, ..policy() }).await;
    let new = asking(&content, 1, r#"{"a":1,"b":[true]}"#);
    bench.admit(vec![new.clone()]).await;
    let again = asking(&content, 2, "{ \"b\": [ true ],\n \"a\": 1.0 }");
    assert_eq!(again.id, new.id);
    let state = StateKind::Queued;
    assert_eq!(bench.admit(vec![again]).await, [Admission::Attached { state, same_content: true }]);
    let raw = |n: u64, bytes: &'static str| {
        let payload = Payload::raw(bytes);
        let id = content.id_of(&route(), &payload).ok().flatten().unwrap_or(RequestId([0; 32]));
        NewRequest { id, payload, ..request(n) }
    };
    assert_eq!(bench.admit(vec![raw(3, "{}")]).await, [Admission::New { generation: 0 }]);
    assert_ne!(raw(3, "{}").id, raw(4, "{ }").id);
}

/// Named fields make the id; without one of them, or without JSON, there is none.
pub async fn named_fields_make_the_id(bench: Bench) {
    let fields = Identity::Fields(vec![path("/order/id"), path("/venue")]);
    bench.define(RoutePolicy { identity: fields.clone(), ..policy() }).await;
    let new = asking(&fields, 1, r#"{"order":{"id":7},"venue":"x","at":1}"#);
    assert_eq!(bench.admit(vec![new.clone()]).await, [Admission::New { generation: 0 }]);
    let other = asking(&fields, 2, r#"{"order":{"id":7},"venue":"x","at":2}"#);
    assert_eq!(other.id, new.id);
    let state = StateKind::Queued;
    let waits = Admission::Attached { state, same_content: false };
    assert_eq!(bench.admit(vec![other]).await, [waits], "the same request with other content");
    let no_id = |payload, why| async {
        let requests = vec![NewRequest { payload, ..request(9) }];
        let refused = bench.apply(Admit { cursor: None, requests }).await;
        assert_eq!(refused, Outcome::Invalid(Invalid::NoIdentity { given: id(9), why }));
    };
    no_id(Payload::json(r#"{"order":{"id":7}}"#), IdentityError::MissingField(path("/venue"))).await;
    no_id(Payload::raw("{}"), IdentityError::NotDeclaredJson(crate::words::Encoding::Raw)).await;
    let refused =
        bench.apply(Admit { cursor: None, requests: vec![NewRequest { payload: Payload::json("{"), ..request(9) }] });
    assert!(matches!(refused.await, Outcome::Invalid(Invalid::NoIdentity { why: IdentityError::NotJson(_), .. })));
}
