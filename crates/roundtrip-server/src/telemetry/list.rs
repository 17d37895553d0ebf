//! Every metric that the program shows: its name, what its labels are and what it says. What
//! is counted, what is served and `docs/metrics.md` are made of this list.

use std::fmt::Write;

/// How a metric's values are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process runs.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts how many took how long.
    Histogram,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As it is shown, with its unit.
    pub name: &'static str,
    /// How to read it.
    pub kind: Kind,
    /// What its values are told apart by.
    pub labels: &'static [&'static str],
    /// What it says, without a full stop.
    pub help: &'static str,
}

impl Metric {
    /// The name under which it is registered: what a counter's ends with is added when it is shown.
    pub(super) fn stem(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        }
    }
}

macro_rules! metrics {
    ($($part:literal { $($name:ident = $kind:ident $shown:literal [$($label:literal),*] $help:literal;)* })*) => {
        $($(
            #[doc = $help]
            pub(super) const $name: Metric =
                Metric { name: $shown, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*)*

        /// All metrics, in their parts.
        pub const PARTS: &[(&str, &[Metric])] = &[$(($part, &[$($name),*])),*];
    };
}

metrics! {
    "Routes: what this process did" {
        ADMITTED = Counter "roundtrip_requests_admitted_total" ["route"] "Requests that came in";
        REPEATED = Counter "roundtrip_requests_repeated_total" ["route"] "Further occurrences of requests that were known";
        SUPERSEDED = Counter "roundtrip_requests_superseded_total" ["route"] "Requests whose content changed";
        LEASED = Counter "roundtrip_requests_leased_total" ["route"] "Requests that workers took, every attempt counted";
        RELEASED = Counter "roundtrip_requests_released_total" ["route"] "Requests that workers gave back at no cost";
        FAILED = Counter "roundtrip_attempts_failed_total" ["route", "class"] "Attempts that failed and will be made again; class is transport, retryable, fatal or crash";
        ANSWERED = Counter "roundtrip_requests_answered_total" ["route"] "Responses that were recorded";
        ASSIGNED = Counter "roundtrip_requests_assigned_total" ["route"] "Answers that were put on a slot of a lane, with their bytes stored";
        RETURNED = Counter "roundtrip_requests_returned_total" ["route"] "Answers whose slot was used for something else and that are sent again";
        UNMINED = Counter "roundtrip_requests_unmined_total" ["route"] "Answers whose transaction a reorg took out of the chain";
        REPLACED = Counter "roundtrip_requests_replaced_total" ["route"] "Answers whose place a failure response took";
        DIED = Counter "roundtrip_requests_dead_total" ["route"] "Requests that became dead letters";
        REARMED = Counter "roundtrip_requests_rearmed_total" ["route"] "Dead letters that are tried again";
        SETTLED = Counter "roundtrip_requests_settled_total" ["route"] "Requests that ended well: their answer is final where it was wanted";
        ENDED = Counter "roundtrip_requests_ended_total" ["route", "end"] "Requests that ended, well or not; end is settled, dead, expired, withdrawn or elsewhere";
        ANSWER_SECONDS = Histogram "roundtrip_request_answer_seconds" ["route"] "From the admission of a request to its answer";
        CONFIRM_SECONDS = Histogram "roundtrip_request_confirm_seconds" ["route"] "From the admission of a request to the depth at which users call its transaction settled; one that was first seen at final depth is not in it";
        SETTLE_SECONDS = Histogram "roundtrip_request_settle_seconds" ["route"] "From the admission of a request to its good end";
    }
    "Routes: how they stand, the same in every process" {
        LIVE = Gauge "roundtrip_requests_live" ["route", "state"] "Live requests in each state that has any";
        OLDEST = Gauge "roundtrip_requests_oldest_age_seconds" ["route", "state"] "How long ago the oldest request in that state came in";
        PAUSED = Gauge "roundtrip_route_paused" ["route"] "1 if the route hands out nothing";
    }
    "Workers that are called: what the process that calls them knows" {
        TOOL_THERE = Gauge "roundtrip_tool_there" ["route"] "0 if the tool that works on the route could not be asked the last time, or says that it is not well: its requests wait, at no cost";
    }
    "Lanes: what this process did" {
        LANE_ASSIGNED = Counter "roundtrip_lane_answers_assigned_total" ["lane"] "Answers that were put on slots of the lane";
        LANE_ATTEMPTS = Counter "roundtrip_lane_attempts_total" ["lane"] "Further signed attempts for slots that had one: dearer bytes, and cancels";
        LANE_FILLS = Counter "roundtrip_lane_fills_total" ["lane"] "Slots that were passed over and filled";
        LANE_CANCELS = Counter "roundtrip_lane_cancels_total" ["lane"] "Parcels that were to be cancelled";
    }
    "Lanes: how they stand, the same in every process" {
        LANE_STATUS = Gauge "roundtrip_lane_status" ["lane", "destination", "status"] "1 for the status that the lane has: active, paused, quarantined, stopped or unfunded";
        LANE_IN_FLIGHT = Gauge "roundtrip_lane_in_flight" ["lane", "destination"] "Parcels that are not final";
        LANE_WINDOW = Gauge "roundtrip_lane_window" ["lane", "destination"] "How many parcels may be in flight";
        LANE_GAP = Gauge "roundtrip_lane_gap_slots" ["lane", "destination"] "Slots that were passed over and carry nothing yet";
        LANE_NEXT = Gauge "roundtrip_lane_next_nonce" ["lane", "destination"] "The next slot";
        LANE_SETTLED = Gauge "roundtrip_lane_settled_nonce" ["lane", "destination"] "Every slot below is used up beyond any reorg";
    }
    "Lanes: what the process that sends knows" {
        LANE_FEE = Gauge "roundtrip_lane_fee_offered_wei" ["lane"] "The most that the last signed transaction pays for a unit of gas";
        LANE_TIP = Gauge "roundtrip_lane_tip_offered_wei" ["lane"] "What of it goes to whoever builds the block";
        LANE_PAID = Gauge "roundtrip_lane_fee_paid_wei" ["lane"] "What the newest transaction that was mined paid for a unit of gas, by its block's base fee";
        LANE_AT_CAP = Gauge "roundtrip_lane_at_fee_cap" ["lane"] "1 if a slot of the lane pays all that it may and is not mined";
        LANE_BALANCE = Gauge "roundtrip_lane_balance_wei" ["lane"] "What the lane's account holds, as of the last look";
    }
    "Destinations without lanes: what this process did" {
        DELIVERED = Counter "roundtrip_destination_delivered_total" ["destination"] "Answers whose delivery is recorded";
        DELIVERIES = Counter "roundtrip_destination_attempts_total" ["destination", "result"] "Attempts to deliver; result is delivered, failed (and made again) or refused (for good)";
        DELIVERY_SECONDS = Histogram "roundtrip_destination_attempt_seconds" ["destination"] "How long attempts to deliver took";
    }
    "Listeners: how they stand, the same in every process" {
        CURSOR = Gauge "roundtrip_listener_cursor_height" ["listener"] "The newest final block up to which everything is stored";
        ORIGIN_HEAD = Gauge "roundtrip_origin_head_height" ["origin"] "The newest block of the origin that the store was told of";
        ORIGIN_BEHIND = Gauge "roundtrip_origin_behind_seconds" ["origin"] "How far the origin's clock, as the store knows it, is behind";
    }
    "Listeners: what the process that listens knows" {
        LISTENER_HEAD = Gauge "roundtrip_listener_head_height" ["listener"] "The newest block that a node named";
        LISTENER_FINAL = Gauge "roundtrip_listener_final_height" ["listener"] "The newest final block that a node named";
        LISTENER_READ = Gauge "roundtrip_listener_read_height" ["listener"] "The newest block that was read and stored";
        LISTENER_LAG = Gauge "roundtrip_listener_lag_blocks" ["listener"] "Blocks that nodes have named and that are not read yet";
        LISTENER_LAG_SECONDS = Gauge "roundtrip_listener_lag_seconds" ["listener"] "How old the newest block is that was read, by its chain's clock";
        LISTENER_BLOCKS = Counter "roundtrip_listener_blocks_total" ["listener"] "Blocks that were read; one that is read again counts again";
        LISTENER_REORGS = Counter "roundtrip_listener_reorgs_total" ["listener"] "Reorgs that were seen";
        LISTENER_FLAWED = Counter "roundtrip_listener_flawed_total" ["listener"] "Events that were stored as dead letters because nobody could work on them as they are";
        LISTENER_MISSED = Counter "roundtrip_listener_missed_total" ["listener"] "Events that nodes hid at first and only the second pass found";
    }
    "Nodes: how they did for whoever asked them" {
        NODE_WELL = Gauge "roundtrip_node_well" ["chain", "node", "url", "by"] "1 if little is held against the node; url is its place in the chain's list, by the listener or the destination that asks it";
        NODE_ANSWERS = Counter "roundtrip_node_answers_total" ["chain", "node", "url", "by", "result"] "What nodes answered; result is good, busy (asked for patience), silent (no answer) or astray (what others say is not so)";
    }
    "The program" {
        CALLS = Counter "roundtrip_http_calls_total" ["method", "path", "status"] "Calls over HTTP, by the template of their path";
        CALL_SECONDS = Histogram "roundtrip_http_call_seconds" ["method", "path"] "How long calls took to be answered; those that wait for work count their wait";
        SPANS = Counter "roundtrip_spans_exported_total" [] "Spans that a collector of traces took";
        SPANS_DROPPED = Counter "roundtrip_spans_dropped_total" [] "Spans that are missing in traces, because nobody took them or more came than could wait";
        STORE_UP = Gauge "roundtrip_store_up" [] "1 if the store answered this scrape, or the last one within a second";
        STORE_READ = Gauge "roundtrip_store_read_seconds" [] "How long the store took to show how everything stands";
        STARTED = Gauge "roundtrip_start_time_seconds" [] "When the process started, in seconds since 1970";
        BUILD = Gauge "roundtrip_build_info" ["version"] "1, with the version of the program";
    }
}

/// All metrics.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    PARTS.iter().flat_map(|(_, metrics)| *metrics)
}

/// The list, as Markdown.
pub fn reference() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         `/metrics` of the API, and of `telemetry.listen` in any process, as OpenMetrics text, which Prometheus reads. With `[api.auth]` a scrape\n\
         brings a token of a viewer or an operator. This page is made by `roundtrip metrics`.\n\n\
         Counters and histograms tell what one process did, so those of all processes add up: `sum by (route) (rate(...))`. What is the same in\n\
         every process comes from the store, read at most once a second: `max by (route, state) (...)`. A lease that a crash forgets, and a commit\n\
         whose acknowledgement was lost, are the two things that a counter may be off by. [`deploy/prometheus/alerts.yml`](../deploy/prometheus/alerts.yml)\n\
         says what to be woken by and what to do then, [`deploy/grafana/roundtrip.json`](../deploy/grafana/roundtrip.json) shows it.\n",
    );
    for (part, metrics) in PARTS {
        let _infallible = write!(text, "\n## {part}\n\n| metric | kind | labels | what it says |\n|---|---|---|---|\n");
        for Metric { name, kind, labels, help } in *metrics {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let _infallible = writeln!(text, "| `{name}` | {} | {} | {help}. |", kind.word(), labels.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let names: BTreeSet<&str> = metrics().map(|metric| metric.name).collect();
        assert_eq!(names.len(), metrics().count(), "no name is there twice");
        for metric in metrics() {
            let Metric { name, kind, .. } = metric;
            assert!(
                name.starts_with("roundtrip_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{name}"
            );
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(!metric.help.ends_with('.'), "{name}");
        }
    }
}
