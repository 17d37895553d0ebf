//! Lanes, what their slots carry, and what the signed bytes say.

use std::borrow::Cow;
use std::collections::BTreeMap;

use roundtrip::sender::{AttemptKind, LaneStatus, ParcelStage, SignedAttempt};
use roundtrip::store::query::{LaneView, ParcelView, SeatView};
use roundtrip_evm::ContractCall;
use roundtrip_evm::sender::Signed;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A lane.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireLane {
    /// Its name.
    pub name: String,
    /// Whose answers it carries.
    pub destination: String,
    /// `active`, `paused`, `quarantined`, `unfunded` or `stopped`.
    pub status: Cow<'static, str>,
    /// Why, if it is paused or unfunded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Until when, if it is quarantined, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// How many parcels may be under way.
    pub window: u32,
    /// The next slot.
    pub next: u64,
    /// Every slot below is used up beyond any reorg.
    pub settled: u64,
    /// How many parcels are not final.
    pub under_way: usize,
    /// The lowest slot that pays all that it may and is not mined, if the process that is asked sends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_fee_cap: Option<u64>,
    /// The account that signed what is under way, if it is of an EVM chain; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The process that sends on it; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<WireOwner>,
    /// The parcels, by slot; not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parcels: Vec<WireParcel>,
}

/// Who holds a seat.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireOwner {
    /// Its name, unique to a process and its start.
    pub name: String,
    /// Until when, unless it is renewed, in milliseconds since 1970.
    pub until_ms: u64,
}

impl From<SeatView> for WireOwner {
    fn from(view: SeatView) -> WireOwner {
        WireOwner { name: view.holder.to_string(), until_ms: view.until.0 }
    }
}

impl From<LaneView> for WireLane {
    fn from(view: LaneView) -> WireLane {
        let (status, reason, until_ms) = status_of(&view.status);
        WireLane {
            name: view.name.to_string(),
            destination: view.destination.to_string(),
            status: status.into(),
            reason,
            until_ms,
            window: view.window,
            next: view.next.0,
            settled: view.settled.0,
            under_way: view.under_way,
            at_fee_cap: None,
            account: None,
            owner: None,
            parcels: Vec::new(),
        }
    }
}

impl WireLane {
    /// A lane with its owner and its parcels, whose bytes are read by the call of its destination.
    pub(super) fn whole(
        mut view: LaneView,
        seat: Option<SeatView>,
        calls: &BTreeMap<String, ContractCall>,
    ) -> WireLane {
        let call = calls.get(view.destination.as_str());
        let parcels = std::mem::take(&mut view.parcels);
        let account = parcels.iter().flat_map(|parcel| &parcel.attempts).find_map(Signed::by);
        let parcels = parcels.iter().map(|parcel| WireParcel::of(parcel, call)).collect();
        let account = account.map(|account| account.to_string());
        WireLane { account, owner: seat.map(WireOwner::from), parcels, ..WireLane::from(view) }
    }
}

pub(super) fn status_of(status: &LaneStatus) -> (&'static str, Option<String>, Option<u64>) {
    match status {
        LaneStatus::Active => ("active", None, None),
        LaneStatus::Paused { reason } => ("paused", Some(reason.to_string()), None),
        LaneStatus::Quarantined { until } => ("quarantined", None, Some(until.0)),
        LaneStatus::Unfunded { reason } => ("unfunded", Some(reason.to_string()), None),
        LaneStatus::Stopped => ("stopped", None, None),
    }
}

/// What a slot carries.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireParcel {
    /// Which slot.
    pub nonce: u64,
    /// `assigned`, `included` or `confirmed`.
    pub stage: Cow<'static, str>,
    /// The requests whose answers it carries; none for a slot that is only used up.
    pub requests: Vec<String>,
    /// Its signed attempts, oldest first.
    pub attempts: Vec<WireAttempt>,
    /// The attempt that was found in a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mined: Option<WireMined>,
    /// Whether it is to be cancelled.
    pub cancelled: bool,
}

/// Where an attempt was found.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireMined {
    /// Which attempt.
    pub hash: String,
    /// In the block of this height.
    pub height: u64,
    /// The block's hash.
    pub block: String,
}

/// Signed bytes, and what they say.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireAttempt {
    /// The hash by which the chain knows it.
    pub hash: String,
    /// Whether it carries the parcel; else it only uses the slot up.
    pub carries: bool,
    /// The signed bytes, hexadecimal.
    pub bytes: String,
    /// What they say, if they are of an EVM chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<WireSigned>,
}

/// What a signed transaction says. Amounts are decimal texts of wei.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireSigned {
    /// Who is called.
    pub to: String,
    /// How much is sent along.
    pub value: String,
    /// How much gas may be used.
    pub gas: u64,
    /// What is paid for a unit of gas at the most.
    pub fee_most: String,
    /// How much of it goes to whoever builds the block.
    pub fee_tip: String,
    /// The function that is called, if it is the destination's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Its arguments.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
}

impl WireParcel {
    fn of(view: &ParcelView, call: Option<&ContractCall>) -> WireParcel {
        let stage = match view.stage {
            ParcelStage::Assigned => "assigned",
            ParcelStage::Included => "included",
            ParcelStage::Confirmed => "confirmed",
        };
        let hexadecimal = |bytes: &[u8]| format!("0x{}", alloy::hex::encode(bytes));
        let attempt = |attempt: &SignedAttempt| WireAttempt {
            hash: format!("0x{}", attempt.hash),
            carries: attempt.kind == AttemptKind::Carry,
            bytes: hexadecimal(&attempt.bytes),
            transaction: Signed::read(attempt).map(|signed| WireSigned::of(&signed, call)),
        };
        let mined = view.block.map(|block| WireMined {
            hash: format!("0x{}", block.attempt),
            height: block.at.height.0,
            block: hexadecimal(&block.at.hash),
        });
        WireParcel {
            nonce: view.nonce.0,
            stage: stage.into(),
            requests: view.deliveries.iter().map(ToString::to_string).collect(),
            attempts: view.attempts.iter().map(attempt).collect(),
            mined,
            cancelled: view.cancel.is_some(),
        }
    }
}

impl WireSigned {
    pub(super) fn of(signed: &Signed, call: Option<&ContractCall>) -> WireSigned {
        let (function, arguments) = call.and_then(|call| call.read(signed.to, &signed.data)).unzip();
        WireSigned {
            to: signed.to.to_string(),
            value: signed.value.to_string(),
            gas: signed.gas,
            fee_most: signed.fee_most.to_string(),
            fee_tip: signed.fee_tip.to_string(),
            function,
            arguments,
        }
    }
}
