//! How values and members are laid out. Sorted sets are in the order of their members'
//! bytes, so numbers are big-endian there; scores would be doubles.
//!
//! ```text
//!   fresh     r: length of what is as in live 4, that, as in body
//!   live      state 1, flags 1, [deadline 8] [turn 8] [due 8], record
//!   body      encoding 1, length of trace 2 (none: 65535), trace, payload
//!   response  encoding 1, payload
//!   receipt   length of when 1, when, record       when: a time 8, or an origin 2 and a height 8
//!   parcel    deliveries 4, their ids, record
//!   group     timer 8, record
//!   item      group 8, id 32, late 1
//!   pace      epoch 8, record
//!   journal   of each entry: the one before it 8, length 4, record
//! ```

use bytes::Bytes;

use crate::inbox::{OriginNo, Request, RouteNo, State, StateKind, When};
use crate::outbox::LaneNo;
use crate::store::disk::{Body, ColdReceipt, ItemRow};
use crate::store::loan::{Damaged, decode};
use crate::store::machine::Listed;
use crate::words::{Encoding, Height, ItemId, Nonce, OrderKey, Payload, Seq, UnixMs};

use super::keys::Key;

const HAS_DEADLINE: u8 = 4;
const HAS_TURN: u8 = 2;
const HAS_DUE: u8 = 1;
const NO_TRACE: u16 = u16::MAX;
/// The longest member that belongs to one request.
const MEMBER_MAX: usize = 40;

/// A member of one of the sorted sets that list live requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) key: Key,
    length: usize,
    bytes: [u8; MEMBER_MAX],
}

impl Member {
    fn new(key: Key, parts: &[&[u8]]) -> Member {
        let mut member = Member { key, length: 0, bytes: [0; MEMBER_MAX] };
        for part in parts {
            member.bytes[member.length..member.length + part.len()].copy_from_slice(part);
            member.length += part.len();
        }
        member
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Everywhere a live request is listed.
pub(super) fn members(request: &Request, listed: &Listed) -> Vec<Member> {
    let (seq, route) = (request.seq.0.to_be_bytes(), request.route.0.to_be_bytes());
    let mut members = Vec::with_capacity(6);
    let mut list = |key, parts: &[&[u8]]| members.push(Member::new(key, parts));
    // Where all have the turn 0, a queue is in the order of numbers: it tells of their state, too.
    if listed.turn != Some(0) {
        list(Key::State, &[&route, &[listed.state as u8], &seq]);
    }
    if let Some(turn) = listed.turn {
        list(Key::Queue, &[&route, &turn.to_be_bytes(), &seq]);
    }
    if let Some(due) = listed.due {
        list(Key::Due, &[&when(due), &seq]);
    }
    if let Some(deadline) = listed.deadline {
        list(Key::Deadline, &[&when(deadline), &seq]);
    }
    match &request.state {
        State::Leased(lease) => {
            list(Key::Lease, &[&lease.until.0.to_be_bytes(), &seq]);
            list(Key::Claim, &[&lease.claim.0.to_be_bytes(), &seq]);
        }
        State::Dead(letter) => list(Key::Dead, &[&letter.forget_at.0.to_be_bytes(), &seq]),
        State::Held | State::Queued | State::Answered(_) => {}
    }
    if let Some(key) = &request.key {
        let line = line(request.route, key);
        match listed.state {
            StateKind::Held | StateKind::Queued if !request.behind => list(Key::Line, &[&line, &[0], &seq]),
            StateKind::Leased => list(Key::Line, &[&line, &[1], &seq]),
            _ => {}
        }
    }
    if request.behind {
        list(Key::Behind, &[&request.id.0, &seq]);
    }
    members
}

/// What the members of one key of a route begin with. Two keys that share it, which nobody
/// will ever see, would only be fetched together.
pub(super) fn line(route: RouteNo, key: &OrderKey) -> [u8; 18] {
    let mut line = [0; 18];
    line[..2].copy_from_slice(&route.0.to_be_bytes());
    line[2..].copy_from_slice(&blake3::hash(key.as_str().as_bytes()).as_bytes()[..16]);
    line
}

pub(super) fn state_prefix(route: RouteNo, state: StateKind) -> [u8; 3] {
    let [high, low] = route.0.to_be_bytes();
    [high, low, state as u8]
}

pub(super) fn when(at: When) -> [u8; 8] {
    at.to_bits().cast_unsigned().to_be_bytes()
}

pub(super) fn slot(lane: LaneNo, nonce: Nonce) -> [u8; 10] {
    let mut slot = [0; 10];
    slot[..2].copy_from_slice(&lane.0.to_be_bytes());
    slot[2..].copy_from_slice(&nonce.0.to_be_bytes());
    slot
}

pub(super) fn origin_height(origin: OriginNo, height: Height) -> [u8; 10] {
    slot(LaneNo(origin.0), Nonce(height.0))
}

/// When a receipt may be forgotten: what its value begins with, less the length.
pub(super) fn receipt_when(receipt: &ColdReceipt) -> Vec<u8> {
    match receipt {
        ColdReceipt::Seen { origin: Some((origin, height)), .. } => origin_height(*origin, *height).to_vec(),
        _ => receipt.until().0.to_be_bytes().to_vec(),
    }
}

pub(super) fn put_live(into: &mut Vec<u8>, listed: &Listed, record: &[u8]) {
    let flag = |is_there: bool, flag| if is_there { flag } else { 0 };
    let flags = flag(listed.deadline.is_some(), HAS_DEADLINE)
        | flag(listed.turn.is_some(), HAS_TURN)
        | flag(listed.due.is_some(), HAS_DUE);
    into.extend([listed.state as u8, flags]);
    into.extend(listed.deadline.iter().flat_map(|at| when(*at)));
    into.extend(listed.turn.iter().flat_map(|turn| turn.to_be_bytes()));
    into.extend(listed.due.iter().flat_map(|at| when(*at)));
    into.extend(record);
}

pub(super) fn put_body(into: &mut Vec<u8>, body: &Body) {
    let trace = body.trace.as_deref().unwrap_or_default();
    let length = body.trace.as_ref().and_then(|trace| u16::try_from(trace.len()).ok());
    into.push(body.payload.encoding as u8);
    into.extend(length.unwrap_or(NO_TRACE).to_be_bytes());
    into.extend(trace.as_bytes());
    into.extend(&body.payload.bytes[..]);
}

pub(super) fn put_as_it_came(into: &mut Vec<u8>, (listed, record): (&Listed, &[u8]), body: &Body) {
    let start = into.len();
    into.extend([0; 4]);
    put_live(into, listed, record);
    let length = u32::try_from(into.len() - start - 4).unwrap_or(u32::MAX);
    into[start..start + 4].copy_from_slice(&length.to_be_bytes());
    put_body(into, body);
}

pub(super) fn put_payload(into: &mut Vec<u8>, payload: &Payload) {
    into.push(payload.encoding as u8);
    into.extend(&payload.bytes[..]);
}

/// Takes a value apart from its start.
pub(super) struct Parts<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    pub(super) fn of(what: &'static str, value: &'a [u8]) -> Parts<'a> {
        Parts { what, rest: value }
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (first, rest) = self.rest.split_at_checked(count).ok_or_else(|| Damaged::new(self.what, "too short"))?;
        self.rest = rest;
        Ok(first)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| Damaged::new(self.what, "too short"))
    }

    pub(super) fn byte(&mut self) -> Result<u8, Damaged> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, Damaged> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn small(&mut self) -> Result<u16, Damaged> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn when(&mut self) -> Result<When, Damaged> {
        self.number().map(|bits| When::from_bits(bits.cast_signed()))
    }

    /// Some ids, and before them how many.
    pub(super) fn ids(&mut self) -> Result<&'a [u8], Damaged> {
        let count = u32::from_be_bytes(self.array()?);
        self.bytes(32 * usize::try_from(count).unwrap_or(usize::MAX / 32))
    }

    /// All of it, which must be this long.
    pub(super) fn whole<const N: usize>(self) -> Result<[u8; N], Damaged> {
        self.rest.try_into().map_err(|_| Damaged::new(self.what, format!("{} bytes in place of {N}", self.rest.len())))
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn record<T: serde::de::DeserializeOwned>(self) -> Result<T, Damaged> {
        decode(self.what, self.rest)
    }

    fn encoding(&mut self) -> Result<Encoding, Damaged> {
        match self.byte()? {
            0 => Ok(Encoding::Raw),
            1 => Ok(Encoding::Json),
            2 => Ok(Encoding::Cbor),
            3 => Ok(Encoding::Protobuf),
            other => Err(Damaged::new(self.what, format!("encoding {other}"))),
        }
    }
}

/// A live request's row: where it is listed, and its record.
pub(super) fn live(value: &[u8]) -> Result<(Listed, Request, &[u8]), Damaged> {
    let mut parts = Parts::of("live", value);
    let (state, flags) = (parts.byte()?, parts.byte()?);
    let state = state_of(state)?;
    let deadline = (flags & HAS_DEADLINE != 0).then(|| parts.when()).transpose()?;
    let turn = (flags & HAS_TURN != 0).then(|| parts.number()).transpose()?;
    let due = (flags & HAS_DUE != 0).then(|| parts.when()).transpose()?;
    let record = parts.rest();
    Ok((Listed { state, turn, due, deadline }, decode("live", record)?, record))
}

pub(super) fn state_of(byte: u8) -> Result<StateKind, Damaged> {
    let known = StateKind::LIVE.into_iter().find(|kind| *kind as u8 == byte);
    known.ok_or_else(|| Damaged::new("live", format!("state {byte}")))
}

/// What is as in `live`, and what is as in `body`.
pub(super) fn as_it_came(value: Vec<u8>) -> Result<(Bytes, Bytes), Damaged> {
    let mut parts = Parts::of("fresh", &value);
    let length = u32::from_be_bytes(parts.array()?) as usize;
    parts.bytes(length)?;
    let value = Bytes::from(value);
    Ok((value.slice(4..4 + length), value.slice(4 + length..)))
}

pub(super) fn body(value: impl Into<Bytes>) -> Result<Body, Damaged> {
    let value = value.into();
    let mut parts = Parts::of("body", &value);
    let (encoding, length) = (parts.encoding()?, parts.small()?);
    let trace = match length {
        NO_TRACE => None,
        length => {
            let trace = std::str::from_utf8(parts.bytes(usize::from(length))?);
            Some(trace.map_err(|error| Damaged::new("body", error))?.into())
        }
    };
    let start = value.len() - parts.rest().len();
    Ok(Body { payload: Payload { encoding, bytes: value.slice(start..) }, trace })
}

pub(super) fn payload(value: Vec<u8>) -> Result<Payload, Damaged> {
    let encoding = Parts::of("payloads", &value).encoding()?;
    Ok(Payload { encoding, bytes: Bytes::from(value).slice(1..) })
}

pub(super) fn receipt(value: &[u8]) -> Result<ColdReceipt, Damaged> {
    let mut parts = Parts::of("receipts", value);
    let length = parts.byte()?;
    parts.bytes(usize::from(length))?;
    parts.record()
}

pub(super) fn item(value: &[u8]) -> Result<ItemRow, Damaged> {
    let mut parts = Parts::of("item", value);
    Ok(ItemRow { group: parts.number()?, id: ItemId(parts.array()?), late: parts.byte()? != 0 })
}

pub(super) fn put_item(into: &mut Vec<u8>, row: &ItemRow) {
    into.extend(row.group.to_be_bytes());
    into.extend(row.id.0);
    into.push(u8::from(row.late));
}

/// The moment after a time, before which everything of that time lies.
pub(super) fn after(now: UnixMs) -> [u8; 8] {
    now.0.saturating_add(1).to_be_bytes()
}

pub(super) fn seq(value: &[u8]) -> Result<Seq, Damaged> {
    Parts::of("numbers", value).number().map(Seq)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::store::loan::encode;
    use crate::words::RequestId;

    /// `fetch.lua` finds the id of a request in its record: after the number, seven bits to a
    /// byte, and a length.
    #[test]
    fn a_record_begins_with_its_number_and_id() {
        let start = |seq: u64| encode(&(Seq(seq), RequestId([7; 32]))).unwrap();
        for (seq, bytes) in [(1, 1), (127, 1), (128, 2), (u64::MAX, 10)] {
            assert_eq!(start(seq)[bytes..], [&[32][..], &[7; 32]].concat(), "{seq}");
        }
    }

    #[test]
    fn bodies_survive() {
        for trace in [None, Some(""), Some("00-abc-01")] {
            let kept = Body { payload: Payload::raw(vec![1, 2, 3]), trace: trace.map(Box::from) };
            let mut value = Vec::new();
            put_body(&mut value, &kept);
            assert_eq!(body(value).unwrap(), kept);
        }
        assert!(body(vec![0, 0]).is_err() && body(vec![9, 255, 255]).is_err());
    }
}
