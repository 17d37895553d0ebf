//! What a step of a request changes in what is shown: a pure function of the request before
//! and after.
//!
//! Nothing is compared with what is there. A projection that depends on nothing that changed
//! writes nothing, so most steps write what they must, and what is not needed is not fetched.

use std::collections::{BTreeMap, BTreeSet};

use super::template::{Facts, Uses};
use super::{Form, Kind, ListEnd, OWN_PREFIX, Projection, Side, Stage, Step};
use crate::inbox::{RouteNo, State};
use crate::words::{RequestId, RouteName, Seq};

/// Longest key; what would have a longer one is not shown.
const KEY_BYTES_MAX: usize = 1024;
/// Most arguments of one write, less than a script can pass on.
const ARGUMENTS_MAX: usize = 1000;

/// One write to a key of the user's naming.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Write {
    /// What the key must be, if it is there.
    pub(in crate::store) kind: Kind,
    pub(in crate::store) key: Vec<u8>,
    pub(in crate::store) command: &'static str,
    pub(in crate::store) arguments: Vec<Vec<u8>>,
    /// Whether another of its kind to the same key may go with it.
    pub(in crate::store) joins: bool,
}

/// What must be at hand before it can be told what is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Lacking {
    pub(in crate::store) bodies: BTreeSet<Seq>,
    pub(in crate::store) responses: BTreeSet<RequestId>,
}

/// The projections of each route that has some.
pub(in crate::store) struct Shower<'a>(BTreeMap<RouteNo, (&'a RouteName, Vec<&'a Projection>)>);

/// What a step is to a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    Nothing,
    /// The request is shown no longer.
    Leaves,
    /// The request is shown, anew or otherwise than before.
    Shows,
}

impl Side<'_> {
    fn is_shown(&self, by: &Projection) -> bool {
        // Whoever waits behind another of its id would take its place.
        !self.request.behind && by.states.has(self.stage)
    }

    fn may_have_response(&self) -> bool {
        match &self.request.state {
            State::Answered(_) => true,
            State::Dead(letter) => letter.answer.is_some(),
            State::Held | State::Queued | State::Leased(_) => false,
        }
    }
}

impl Step<'_> {
    fn touches(&self, projection: &Projection) -> Touch {
        let was = self.before.filter(|before| before.is_shown(projection));
        let is = self.after.is_shown(projection);
        let stage_changed = self.changes_stage();
        match (&projection.form, was) {
            (Form::List(_), Some(_)) if is && (stage_changed || self.new_body) => Touch::Shows,
            (Form::List(_) | Form::Count(_), None) if is => Touch::Shows,
            (Form::List(_) | Form::Count(_), _) => Touch::Nothing,
            (_, None) if is => Touch::Shows,
            (_, None) => Touch::Nothing,
            (_, Some(_)) if !is => Touch::Leaves,
            (_, Some(_)) => {
                let uses = projection.place_uses().or(projection.value_uses());
                let changed = uses.record
                    || (uses.state && stage_changed)
                    || (uses.request && self.new_body)
                    || (uses.response && self.new_response);
                if changed || !self.after.stage.is_live() { Touch::Shows } else { Touch::Nothing }
            }
        }
    }
}

impl<'a> Shower<'a> {
    /// The projections of these routes.
    pub(in crate::store) fn new(
        projections: &'a [Projection],
        routes: impl Iterator<Item = (RouteNo, &'a RouteName)>,
    ) -> Shower<'a> {
        let of = |name: &RouteName| projections.iter().filter(|by| by.route == *name).collect::<Vec<_>>();
        let each = routes.map(|(no, name)| (no, (name, of(name)))).filter(|(_, (_, some))| !some.is_empty());
        Shower(each.collect())
    }

    /// What the steps need that is not at hand.
    pub(in crate::store) fn lacking(&self, steps: &[Step<'_>]) -> Lacking {
        let mut lacking = Lacking::default();
        for (step, _, projection) in self.touched(steps) {
            let (before, after) = match step.touches(projection) {
                Touch::Nothing => continue,
                Touch::Leaves => (projection.place_uses(), Uses::default()),
                Touch::Shows => (projection.place_uses(), projection.place_uses().or(projection.value_uses())),
            };
            if let Some(side) = step.before.filter(|side| side.is_shown(projection)) {
                lacking.add(&side, before);
            }
            lacking.add(&step.after, after);
        }
        lacking
    }

    /// What to write, and how much could not be shown because its key would be none.
    pub(in crate::store) fn writes(&self, steps: &[Step<'_>]) -> (Vec<Write>, u64) {
        let mut writes = Writes::default();
        for (step, route, projection) in self.touched(steps) {
            match step.touches(projection) {
                Touch::Nothing => {}
                Touch::Leaves => writes.leave(step, route, projection),
                Touch::Shows => writes.show(step, route, projection),
            }
        }
        // What goes comes before what takes its place.
        let (gone, put) = (joined(writes.gone), joined(writes.put));
        (gone.into_iter().chain(put).chain(writes.last.into_values()).collect(), writes.refused)
    }

    fn touched<'s>(
        &self,
        steps: &'s [Step<'s>],
    ) -> impl Iterator<Item = (&'s Step<'s>, &'a RouteName, &'a Projection)> {
        steps.iter().flat_map(|step| {
            let of = self.0.get(&step.after.request.route);
            of.into_iter().flat_map(move |(route, all)| all.iter().map(move |projection| (step, *route, *projection)))
        })
    }
}

/// Writes to one key that take any number of fields, members or items become one.
fn joined(writes: Vec<Write>) -> Vec<Write> {
    let mut first: BTreeMap<(Vec<u8>, &'static str), usize> = BTreeMap::new();
    let mut all: Vec<Write> = Vec::with_capacity(writes.len());
    for mut write in writes {
        if write.joins {
            let place = (write.key.clone(), write.command);
            let same = first.get(&place).and_then(|&at| all.get_mut(at));
            if let Some(same) = same.filter(|same| same.arguments.len() + write.arguments.len() <= ARGUMENTS_MAX) {
                same.arguments.append(&mut write.arguments);
                continue;
            }
            first.insert(place, all.len());
        }
        all.push(write);
    }
    all
}

impl Lacking {
    fn add(&mut self, side: &Side<'_>, uses: Uses) {
        if uses.request && side.body.is_none() {
            self.bodies.insert(side.request.seq);
        }
        if uses.response && side.response.is_none() && side.may_have_response() {
            self.responses.insert(side.request.id);
        }
    }
}

/// Where a request is shown: a key, and what is its own in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Where {
    key: Vec<u8>,
    part: Vec<u8>,
}

#[derive(Default)]
struct Writes {
    gone: Vec<Write>,
    put: Vec<Write>,
    /// What is done to a key once, however much is written to it.
    last: BTreeMap<(Vec<u8>, &'static str), Write>,
    refused: u64,
}

fn facts<'a>(side: &Side<'a>, route: &'a RouteName, projection: &'a Projection) -> Facts<'a> {
    Facts {
        route,
        id: side.request.id,
        generation: side.request.generation,
        revision: side.request.revision,
        state: projection.words.of(side.stage),
        record: Some(side.request),
        request: side.body,
        response: side.response,
    }
}

fn number(number: impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

impl Writes {
    fn place(&mut self, facts: &Facts<'_>, projection: &Projection) -> Option<Where> {
        let part = match &projection.form {
            Form::Map(map) => map.field.render(facts)?,
            Form::Set(member) => member.render(facts)?,
            Form::String(_) | Form::Hash(_) | Form::List(_) | Form::Count(_) => Vec::new(),
        };
        let key = projection.key.render(facts)?;
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) || key.starts_with(OWN_PREFIX.as_bytes()) {
            self.refused += 1;
            return None;
        }
        Some(Where { key, part })
    }

    fn leave(&mut self, step: &Step<'_>, route: &RouteName, projection: &Projection) {
        let Some(before) = step.before else { return };
        let Some(place) = self.place(&facts(&before, route, projection), projection) else { return };
        match (&projection.form, projection.keep_ms) {
            (Form::String(_) | Form::Hash(_), Some(ms)) => {
                let (kind, arguments) = (projection.form.kind(), vec![number(ms)]);
                self.gone.push(Write { kind, key: place.key, command: "PEXPIRE", arguments, joins: false });
            }
            _ => self.remove(place, projection),
        }
    }

    fn remove(&mut self, place: Where, projection: &Projection) {
        let (command, arguments) = match &projection.form {
            Form::String(_) | Form::Hash(_) => ("DEL", Vec::new()),
            Form::Map(_) => ("HDEL", vec![place.part]),
            Form::Set(_) => ("SREM", vec![place.part]),
            Form::List(_) | Form::Count(_) => return,
        };
        let (kind, joins) = (projection.form.kind(), !projection.form.is_owned());
        self.gone.push(Write { kind, key: place.key, command, arguments, joins });
    }

    fn show(&mut self, step: &Step<'_>, route: &RouteName, projection: &Projection) {
        let was = step.before.filter(|before| before.is_shown(projection));
        let was = was.and_then(|before| self.place(&facts(&before, route, projection), projection));
        let facts = facts(&step.after, route, projection);
        let is = self.place(&facts, projection);
        if let Some(was) = was.filter(|was| Some(was) != is.as_ref()) {
            self.remove(was, projection);
        }
        if let Some(place) = is {
            self.put(place, &facts, projection, step.after.stage);
        }
    }

    fn put(&mut self, place: Where, facts: &Facts<'_>, projection: &Projection, stage: Stage) {
        let kind = projection.form.kind();
        let Where { key, part } = place.clone();
        let joins = matches!(projection.form, Form::Map(_) | Form::Set(_) | Form::List(_));
        let write = |command, arguments| Write { kind, key: key.clone(), command, arguments, joins };
        let ends = projection.keep_ms.filter(|_| !stage.is_live()).map(number);
        let put = match &projection.form {
            Form::String(value) => value.render(facts).map(|value| {
                let expires = ends.into_iter().flat_map(|ms| [b"PX".to_vec(), ms]);
                write("SET", [value].into_iter().chain(expires).collect())
            }),
            Form::Hash(fields) => {
                // A field that its request no longer fills is to go.
                self.put.push(write("DEL", Vec::new()));
                let filled =
                    fields.iter().filter_map(|(name, value)| Some([name.as_bytes().to_vec(), value.render(facts)?]));
                let filled: Vec<Vec<u8>> = filled.flatten().collect();
                self.last.extend(ends.map(|ms| ((key.clone(), "PEXPIRE"), write("PEXPIRE", vec![ms]))));
                (!filled.is_empty()).then(|| write("HSET", filled))
            }
            Form::Map(map) => map.value.render(facts).map(|value| write("HSET", vec![part, value])),
            Form::Set(_) => Some(write("SADD", vec![part])),
            Form::List(list) => list.value.render(facts).map(|value| {
                let max = i64::from(list.max);
                let (push, from, to) = match list.end {
                    ListEnd::Left => ("LPUSH", 0, max - 1),
                    ListEnd::Right => ("RPUSH", -max, -1),
                };
                self.last.insert((key.clone(), "LTRIM"), write("LTRIM", vec![number(from), number(to)]));
                write(push, vec![value])
            }),
            Form::Count(count) => Some(match &count.field {
                Some(field) => write("HINCRBY", vec![field.as_bytes().to_vec(), number(1)]),
                None => write("INCRBY", vec![number(1)]),
            }),
        };
        match (put, &projection.form) {
            (Some(put), _) => self.put.push(put),
            // What has nothing to say is not there.
            (None, Form::String(_) | Form::Map(_)) => return self.remove(place, projection),
            (None, _) => {}
        }
        if let (Some(ms), false) = (projection.keep_ms, projection.form.is_owned()) {
            self.last.insert((key.clone(), "PEXPIRE"), write("PEXPIRE", vec![number(ms)]));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::inbox::{LeaseMark, Occurrence, Occurrences, Request, RowFlags, Standing, When};
    use crate::words::{ClaimId, ErrorClass, ErrorNote, Height, OccurrenceId, Payload, Token, UnixMs, WorkerName};

    fn request(state: State) -> Request {
        let occurrence = Occurrence {
            id: OccurrenceId([1; 32]),
            height: Height(0),
            origin: None,
            revision: 0,
            standing: Standing::Final,
        };
        Request {
            seq: Seq(7),
            id: RequestId([0xAB; 32]),
            occurrences: Occurrences::One(occurrence),
            admitted_at: UnixMs(1000),
            due: When::ALWAYS,
            deadline: When::NEVER,
            state,
            error: None,
            key: None,
            last_entry: 0,
            generation: 0,
            revision: 0,
            attempts: 1,
            crashes: 0,
            misses: 0,
            route: RouteNo(0),
            priority: 0,
            behind: false,
            rows: RowFlags::default(),
        }
    }

    fn leased() -> Request {
        request(State::Leased(Box::new(LeaseMark {
            token: Token { epoch: 1, count: 1 },
            until: UnixMs(2000),
            lease_ms: 1000,
            claim: ClaimId(1),
            worker: WorkerName::new("worker-1").unwrap(),
            revision: 0,
            notices: Vec::new(),
        })))
    }

    fn side<'a>(request: &'a Request, stage: Stage, body: &'a Payload) -> Side<'a> {
        Side { request, stage, body: Some(body), response: None }
    }

    fn projection(text: &str) -> Projection {
        serde_json::from_str(text).unwrap()
    }

    /// The writes as they would be typed; what the key must be is left out.
    fn typed(projection: &Projection, steps: &[Step<'_>]) -> Vec<String> {
        let route = RouteName::new("r").unwrap();
        let projections = [projection.clone()];
        let (writes, _) = Shower::new(&projections, [(RouteNo(0), &route)].into_iter()).writes(steps);
        let typed = writes.into_iter().map(|write| {
            assert_eq!(write.kind, projection.form.kind());
            let words = std::iter::once(&write.key).chain(&write.arguments);
            let words = words.map(|word| String::from_utf8(word.clone()).unwrap());
            [write.command.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
        });
        typed.collect()
    }

    /// What each of these stages writes, one after the other, from the first on.
    fn check(text: &str, stages: &[(Stage, &[&str])]) {
        let (projection, body) = (projection(text), Payload::json(r#"{"epoch":12,"market":"m"}"#));
        let of = |stage| if stage == Stage::Leased { leased() } else { request(State::Queued) };
        let mut before: Option<(Request, Stage)> = None;
        for (stage, expected) in stages {
            let after = of(*stage);
            let step = Step {
                before: before.as_ref().map(|(request, stage)| side(request, *stage, &body)),
                after: side(&after, *stage, &body),
                new_body: before.is_none(),
                new_response: false,
            };
            assert_eq!(typed(&projection, &[step]), *expected, "{text} to {stage:?}");
            before = Some((after, *stage));
        }
    }

    #[test]
    fn a_string_says_the_state_and_stays_for_a_while_after_the_end() {
        check(
            r#"{"route":"r","key":"epoch:{request/epoch}:window","as":{"string":"{state}"},"states":["live","settled"],
                "words":{"live":"open","settled":"closed"},"keep_ms":60}"#,
            &[
                (Stage::Queued, &["SET epoch:12:window open"]),
                (Stage::Leased, &["SET epoch:12:window open"]),
                (Stage::Settled, &["SET epoch:12:window closed PX 60"]),
            ],
        );
        check(
            r#"{"route":"r","key":"busy:{number}","as":{"string":"{worker}"},"states":["leased"]}"#,
            &[
                (Stage::Queued, &[]),
                (Stage::Leased, &["SET busy:7 worker-1"]),
                (Stage::Queued, &["DEL busy:7"]),
                (Stage::Expired, &[]),
            ],
        );
        check(
            r#"{"route":"r","key":"q:{number}","as":{"string":"{request}"},"states":["queued"],"keep_ms":60}"#,
            &[(Stage::Queued, &[r#"SET q:7 {"epoch":12,"market":"m"}"#]), (Stage::Leased, &["PEXPIRE q:7 60"])],
        );
    }

    #[test]
    fn a_hash_is_written_whole_and_fields_without_a_value_are_left_out() {
        check(
            r#"{"route":"r","key":"h:{number}","as":{"hash":{"epoch":"{request/epoch}","by":"{worker}"}}}"#,
            &[
                (Stage::Queued, &["DEL h:7", "HSET h:7 epoch 12"]),
                (Stage::Leased, &["DEL h:7", "HSET h:7 by worker-1 epoch 12"]),
                (Stage::Withdrawn, &["DEL h:7"]),
            ],
        );
    }

    #[test]
    fn maps_and_sets_have_a_place_for_each_request() {
        check(
            r#"{"route":"r","key":"requests","as":{"map":{"field":"{number}","value":"{request/market}"}}}"#,
            &[(Stage::Queued, &["HSET requests 7 m"]), (Stage::Leased, &[]), (Stage::Settled, &["HDEL requests 7"])],
        );
        check(
            r#"{"route":"r","key":"in:{state}","as":{"set":"{number}"}}"#,
            &[
                (Stage::Queued, &["SADD in:queued 7"]),
                (Stage::Leased, &["SREM in:queued 7", "SADD in:leased 7"]),
                (Stage::Settled, &["SREM in:leased 7"]),
            ],
        );
        check(
            r#"{"route":"r","key":"done:{request/epoch}","as":{"set":"{number}"},"states":["settled"],"keep_ms":9}"#,
            &[(Stage::Queued, &[]), (Stage::Settled, &["SADD done:12 7", "PEXPIRE done:12 9"])],
        );
    }

    #[test]
    fn lists_tell_of_every_change_and_counts_of_every_request() {
        check(
            r#"{"route":"r","key":"news","as":{"list":{"value":"{number} {state}","max":3}},"states":["live","settled"]}"#,
            &[
                (Stage::Queued, &["RPUSH news 7 queued", "LTRIM news -3 -1"]),
                (Stage::Queued, &[]),
                (Stage::Leased, &["RPUSH news 7 leased", "LTRIM news -3 -1"]),
                (Stage::Settled, &["RPUSH news 7 settled", "LTRIM news -3 -1"]),
            ],
        );
        check(
            r#"{"route":"r","key":"stats","as":{"count":{"field":"total"}}}"#,
            &[(Stage::Queued, &["HINCRBY stats total 1"]), (Stage::Leased, &[]), (Stage::Settled, &[])],
        );
    }

    #[test]
    fn writes_to_one_key_are_one_up_to_a_bound() {
        let write = |command: &'static str, key: &str, part: &str, joins| Write {
            kind: Kind::Hash,
            key: key.into(),
            command,
            arguments: vec![part.into(), "v".into()],
            joins,
        };
        let writes = vec![
            write("HSET", "a", "1", true),
            write("HSET", "b", "2", true),
            write("SET", "a", "3", false),
            write("HSET", "a", "4", true),
            write("SET", "a", "5", false),
        ];
        let joined_up: Vec<(Vec<u8>, usize)> =
            joined(writes).into_iter().map(|write| (write.key, write.arguments.len())).collect();
        assert_eq!(joined_up, [(b"a".to_vec(), 4), (b"b".to_vec(), 2), (b"a".to_vec(), 2), (b"a".to_vec(), 2)]);
        let many = (0..ARGUMENTS_MAX).map(|_| write("HSET", "a", "1", true)).collect();
        let lengths: Vec<usize> = joined(many).iter().map(|write| write.arguments.len()).collect();
        assert_eq!(lengths, [ARGUMENTS_MAX, ARGUMENTS_MAX]);
    }

    #[test]
    fn a_key_that_is_the_stores_own_is_never_written() {
        let (body, queued) = (Payload::json(r#"{"key":"roundtrip:{main}:live"}"#), request(State::Queued));
        let step =
            Step { before: None, after: side(&queued, Stage::Queued, &body), new_body: true, new_response: false };
        let projections = [projection(r#"{"route":"r","key":"{request/key}","as":{"set":"{id}"}}"#)];
        let route = RouteName::new("r").unwrap();
        let shower = Shower::new(&projections, [(RouteNo(0), &route)].into_iter());
        assert_eq!(shower.writes(&[step]), (Vec::new(), 1));
    }

    #[test]
    fn only_what_is_needed_is_asked_for() {
        let route = RouteName::new("r").unwrap();
        let (queued, leased, body) = (request(State::Queued), leased(), Payload::json("{}"));
        let bare = |request, stage| Side { request, stage, body: None, response: None };
        let lease = Step {
            before: Some(bare(&queued, Stage::Queued)),
            after: bare(&leased, Stage::Leased),
            new_body: false,
            new_response: false,
        };
        let ends = Step { before: Some(bare(&leased, Stage::Leased)), after: bare(&leased, Stage::Settled), ..lease };
        let asks = |text: &str, step: Step<'_>| {
            let projections = [projection(text)];
            let lacking = Shower::new(&projections, [(RouteNo(0), &route)].into_iter()).lacking(&[step]);
            assert!(lacking.responses.is_empty(), "nothing was answered");
            !lacking.bodies.is_empty()
        };
        let by_id = r#"{"route":"r","key":"requests","as":{"map":{"field":"{id}","value":"{request}"}}}"#;
        assert!(!asks(by_id, lease) && !asks(by_id, ends));
        let by_field = r#"{"route":"r","key":"e:{request/epoch}","as":{"set":"{id}"}}"#;
        assert!(!asks(by_field, lease) && asks(by_field, ends));
        let by_state = r#"{"route":"r","key":"in:{state}","as":{"map":{"field":"{id}","value":"{request}"}}}"#;
        assert!(asks(by_state, lease) && !asks(by_state, ends));
        let other = r#"{"route":"other","key":"in:{state}","as":{"set":"{request/a}"}}"#;
        assert!(!asks(other, lease));
        let new =
            Step { before: None, after: side(&queued, Stage::Queued, &body), new_body: true, new_response: false };
        assert!(!asks(by_field, new), "it is at hand");
    }

    #[test]
    fn what_waits_behind_another_of_its_id_is_not_shown() {
        let (body, mut behind, mut mended) = (Payload::json("{}"), request(State::Held), request(State::Queued));
        behind.behind = true;
        mended.error = Some(Box::new(ErrorNote::new(ErrorClass::Fatal, "no")));
        let map = projection(r#"{"route":"r","key":"requests","as":{"map":{"field":"{number}","value":"{request}"}}}"#);
        let waits =
            Step { before: None, after: side(&behind, Stage::Held, &body), new_body: true, new_response: false };
        assert_eq!(typed(&map, &[waits]), Vec::<String>::new());
        let moves_up = Step {
            before: Some(side(&behind, Stage::Held, &body)),
            after: side(&mended, Stage::Queued, &body),
            new_body: false,
            new_response: false,
        };
        let ends = Step {
            before: Some(side(&mended, Stage::Queued, &body)),
            after: side(&mended, Stage::Settled, &body),
            ..moves_up
        };
        assert_eq!(typed(&map, &[moves_up, ends]), ["HDEL requests 7", "HSET requests 7 {}"]);
    }
}
