//! Routes and their policies, in the words of the wire.

use std::borrow::Cow;
use std::collections::BTreeMap;

use roundtrip::inbox::Identity;
use roundtrip::store::policy::{Gate, OnDuplicate, QueueOrder};
use roundtrip::store::query::RouteView;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A route.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireRoute {
    /// Its name.
    pub name: String,
    /// Whether it hands out nothing.
    pub paused: bool,
    /// Where its answers go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// How they go out: `transactions`, `webhook`, `list`, or `keep` for whoever asks; absent where
    /// this process is not set up for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Cow<'static, str>>,
    /// How many live requests it takes before it pushes back.
    pub capacity: u64,
    /// How long a lease lasts, in milliseconds.
    pub lease_ms: u64,
    /// How many attempts fail before a request is a dead letter.
    pub attempts_max: u16,
    /// How many workers may die or go silent with a request before it is a dead letter.
    pub crashes_max: u16,
    /// When work may start: `seen` or `final`.
    pub work_on: Cow<'static, str>,
    /// When an answer may be published: `seen` or `final`.
    pub publish_on: Cow<'static, str>,
    /// What makes it the same request: `given`, `content` or `fields`.
    pub identity: Cow<'static, str>,
    /// What becomes of a repeat: `attach`, `drop`, `rearm`, `new_generation` or `vote`.
    pub on_duplicate: Cow<'static, str>,
    /// In which order requests are handed out: `fifo`, `priority`, `keyed_fifo`, `deadline` or `random`.
    pub order: Cow<'static, str>,
    /// How long a failed request waits after its first attempt, in milliseconds.
    pub backoff_first_ms: u64,
    /// How long it waits at the most.
    pub backoff_max_ms: u64,
    /// How many are handed out in a period, if that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<WireRate>,
    /// How long a dead letter waits for a person, in milliseconds.
    pub dead_ms: u64,
}

/// So many in a period.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireRate {
    /// How many.
    pub count: u32,
    /// The period, in milliseconds.
    pub per_ms: u64,
}

fn gate(gate: Gate) -> &'static str {
    match gate {
        Gate::Seen => "seen",
        Gate::Final => "final",
    }
}

impl WireRoute {
    /// A route, whose destination's answers go out in one of these ways.
    pub(super) fn of(view: RouteView, deliveries: &BTreeMap<String, &'static str>) -> WireRoute {
        let policy = view.policy;
        let delivery = policy.destination.as_ref().and_then(|to| deliveries.get(to.as_str()).copied());
        WireRoute {
            name: view.name.to_string(),
            paused: view.paused,
            destination: policy.destination.as_ref().map(ToString::to_string),
            delivery: delivery.map(Cow::Borrowed),
            capacity: policy.capacity,
            lease_ms: policy.lease_ms,
            attempts_max: policy.attempts_max,
            crashes_max: policy.crashes_max,
            work_on: gate(policy.work_on).into(),
            publish_on: gate(policy.publish_on).into(),
            identity: match policy.identity {
                Identity::Given => "given",
                Identity::Content => "content",
                Identity::Fields(_) => "fields",
            }
            .into(),
            on_duplicate: match policy.on_duplicate {
                OnDuplicate::Attach => "attach",
                OnDuplicate::Drop => "drop",
                OnDuplicate::Rearm => "rearm",
                OnDuplicate::NewGeneration => "new_generation",
                OnDuplicate::Vote { .. } => "vote",
            }
            .into(),
            order: match policy.order {
                QueueOrder::Fifo => "fifo",
                QueueOrder::Priority => "priority",
                QueueOrder::KeyedFifo { .. } => "keyed_fifo",
                QueueOrder::Deadline => "deadline",
                QueueOrder::Random => "random",
            }
            .into(),
            backoff_first_ms: policy.backoff.first_ms,
            backoff_max_ms: policy.backoff.max_ms,
            rate: policy.rate.map(|rate| WireRate { count: rate.count, per_ms: rate.per_ms }),
            dead_ms: policy.dead_ms,
        }
    }
}
