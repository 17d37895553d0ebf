//! Which of several nodes to ask: those that answered well lately, in the order in which
//! they were given.
//!
//! A failure is a penalty that fades with time, so a node that failed is asked again by
//! itself, and the one that is preferred is preferred again. Nobody is ever given up: with
//! every node failing, they are asked in turn, the least bad first.

use std::time::Duration;

use tokio::time::Instant;

/// A penalty is half of what it was after so long.
const FADES_IN: Duration = Duration::from_secs(30);
/// Two nodes whose penalties differ by less are as good as each other.
const STEP: f64 = 0.5;
/// A penalty is never higher, so that a node is back after some minutes.
const PENALTY_MAX: f64 = 64.0;

/// What a node did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    /// It asked for patience.
    Busy,
    /// It did not answer, or not with what was asked for.
    Silent,
    /// It said what others say is not so.
    Lying,
}

impl Failing {
    fn weight(self) -> f64 {
        match self {
            Failing::Busy => 1.0,
            Failing::Silent => 2.0,
            Failing::Lying => 16.0,
        }
    }
}

/// How well a node did lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Health {
    penalty: f64,
    /// Since when the penalty fades.
    at: Instant,
    asked_at: Option<Instant>,
    answered_at: Option<Instant>,
}

impl Health {
    /// Nothing is known against it.
    pub(crate) fn good(now: Instant) -> Health {
        Health { penalty: 0.0, at: now, asked_at: None, answered_at: None }
    }

    /// How long ago it was last asked.
    pub(crate) fn asked(&self, now: Instant) -> Option<Duration> {
        self.asked_at.map(|at| now.saturating_duration_since(at))
    }

    /// How long ago it last had an answer.
    pub(crate) fn last_answer(&self, now: Instant) -> Option<Duration> {
        self.answered_at.map(|at| now.saturating_duration_since(at))
    }

    fn penalty(&self, now: Instant) -> f64 {
        let fading = now.saturating_duration_since(self.at).as_secs_f64() / FADES_IN.as_secs_f64();
        self.penalty * (-fading).exp2()
    }

    pub(crate) fn failed(&mut self, now: Instant, failing: Failing) {
        let penalty = (self.penalty(now) + failing.weight()).min(PENALTY_MAX);
        *self = Health { penalty, at: now, asked_at: Some(now), ..*self };
    }

    /// Whether little is held against it.
    pub(crate) fn is_good(&self, now: Instant) -> bool {
        self.penalty(now) < HEALTHY_BELOW
    }

    /// A good answer halves what is held against it.
    pub(crate) fn answered(&mut self, now: Instant) {
        *self = Health { penalty: self.penalty(now) / 2.0, at: now, asked_at: Some(now), answered_at: Some(now) };
    }
}

/// A node whose penalty is below this is asked to do what all are to do.
const HEALTHY_BELOW: f64 = 4.0;

/// The order in which to ask nodes of this health.
pub(crate) fn order(healths: &[Health], now: Instant) -> Vec<usize> {
    let mut order: Vec<usize> = (0..healths.len()).collect();
    // Steps, so that what is all but forgotten changes nothing.
    let steps = |at: &usize| (healths[*at].penalty(now) / STEP).floor();
    order.sort_by(|one, other| steps(one).total_cmp(&steps(other)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_is_asked_later_and_comes_back() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut nodes = [Health::good(start); 3];
        assert_eq!(order(&nodes, start), [0, 1, 2]);
        nodes[0].failed(start, Failing::Silent);
        assert_eq!(order(&nodes, start), [1, 2, 0]);
        nodes[1].failed(start, Failing::Busy);
        assert_eq!(order(&nodes, start), [2, 1, 0]);
        nodes[2].failed(start, Failing::Lying);
        assert_eq!(order(&nodes, start), [1, 0, 2]);
        // Patience first, then silence, and last who lied.
        assert_eq!(order(&nodes, after(45)), [1, 0, 2]);
        assert_eq!(order(&nodes, after(61)), [0, 1, 2]);
        assert!(nodes[2].penalty(after(61)) > 1.0);
        assert!(nodes[0].is_good(start) && !nodes[2].is_good(start) && nodes[2].is_good(after(90)));
        assert_eq!(order(&[nodes[2], nodes[0]], after(61)), [1, 0]);
        assert_eq!(order(&[nodes[2], nodes[0]], after(400)), [0, 1]);
    }

    #[test]
    fn who_was_never_asked_is_told_from_who_answered_and_who_did_not() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let ago = |node: &Health| {
            [node.asked(after(60)), node.last_answer(after(60))].map(|ago| ago.map(|ago| ago.as_secs()))
        };
        let mut node = Health::good(start);
        assert!(node.is_good(after(60)));
        assert_eq!(ago(&node), [None, None]);
        node.failed(after(10), Failing::Busy);
        assert_eq!(ago(&node), [Some(50), None]);
        node.answered(after(20));
        assert_eq!(ago(&node), [Some(40), Some(40)]);
        node.failed(after(30), Failing::Silent);
        assert_eq!(ago(&node), [Some(30), Some(40)]);
    }

    #[test]
    fn answers_make_good_for_failures_and_penalties_are_bounded() {
        let start = Instant::now();
        let mut node = Health::good(start);
        (0..1_000).for_each(|_| node.failed(start, Failing::Lying));
        assert!(node.penalty(start) <= PENALTY_MAX);
        (0..10).for_each(|_| node.answered(start));
        assert_eq!(order(&[node, Health::good(start)], start), [0, 1]);
    }
}
