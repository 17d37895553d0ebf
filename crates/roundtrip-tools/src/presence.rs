//! Whether a tool can be asked, as its calls and its `/health` show: for whoever watches over requests that
//! wait for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use roundtrip::clock::Clock;
use roundtrip::words::UnixMs;

/// How long what a failed call tells holds: longer than requests wait between two calls by default.
const CALLS_HOLD_FOR: Duration = Duration::from_secs(15 * 60);

/// Since when a tool is away, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Since when, without a success in between.
    pub since: UnixMs,
    /// What was last found, for the person who reads it.
    pub why: String,
}

impl Away {
    /// It was found again, or for the first time.
    fn again(before: Option<&Away>, why: &str, now: UnixMs) -> Away {
        Away { since: before.map_or(now, |before| before.since), why: why.to_owned() }
    }
}

/// What two witnesses say; each speaks for itself, since a tool that is well may still refuse every call.
#[derive(Debug, Default)]
struct Seen {
    by_health: Option<Away>,
    /// And when the last call failed.
    by_calls: Option<(Away, UnixMs)>,
}

/// Whether a tool can be asked; clones share it. It is there until somebody finds that it is not.
#[derive(Clone)]
pub struct Presence {
    seen: Arc<Mutex<Seen>>,
    clock: Arc<dyn Clock>,
    calls_hold_for: Duration,
}

impl Presence {
    /// Of a tool that nobody has asked yet, by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Presence {
        Presence { seen: Arc::default(), clock, calls_hold_for: CALLS_HOLD_FOR }
    }

    /// What a failed call tells holds for so long: longer than whoever waits for the tool waits between two calls,
    /// and no longer, since a tool that nobody calls may be back.
    #[must_use]
    pub fn believing_calls_for(mut self, calls_hold_for: Duration) -> Presence {
        self.calls_hold_for = calls_hold_for;
        self
    }

    /// Since when it is away, if it is.
    pub fn away(&self) -> Option<Away> {
        let (seen, now) = (self.seen.lock().unwrap_or_else(PoisonError::into_inner), self.clock.now());
        seen.by_health.clone().or_else(|| self.holding(seen.by_calls.as_ref(), now).cloned())
    }

    /// What calls told, unless the last of them was too long ago.
    fn holding<'a>(&self, told: Option<&'a (Away, UnixMs)>, now: UnixMs) -> Option<&'a Away> {
        let holds = |last: UnixMs| Duration::from_millis(now.0.saturating_sub(last.0)) < self.calls_hold_for;
        told.filter(|(_, last)| holds(*last)).map(|(away, _)| away)
    }

    /// What its `/health` came to.
    pub(crate) fn health(&self, came: Result<(), &str>) {
        let (mut seen, now) = (self.seen.lock().unwrap_or_else(PoisonError::into_inner), self.clock.now());
        seen.by_health = came.err().map(|why| Away::again(seen.by_health.as_ref(), why, now));
    }

    /// What a call came to: whether it got to it, not whether it did well.
    pub(crate) fn call(&self, came: Result<(), &str>) {
        let (mut seen, now) = (self.seen.lock().unwrap_or_else(PoisonError::into_inner), self.clock.now());
        seen.by_calls = came.err().map(|why| (Away::again(self.holding(seen.by_calls.as_ref(), now), why, now), now));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use roundtrip::clock::ManualClock;

    use super::*;

    #[test]
    fn it_is_away_since_the_first_of_its_failures() {
        let clock = Arc::new(ManualClock::at(UnixMs(100)));
        let presence = Presence::new(clock.clone());
        let away = |since, why: &str| Some(Away { since: UnixMs(since), why: why.to_owned() });
        assert_eq!(presence.away(), None);
        presence.call(Err("refused"));
        clock.advance_ms(50);
        presence.call(Err("gone"));
        assert_eq!(presence.away(), away(100, "gone"));
        presence.call(Ok(()));
        assert_eq!(presence.away(), None);
        presence.health(Err("it answered 500"));
        presence.call(Ok(()));
        assert_eq!(presence.away(), away(150, "it answered 500"), "each speaks for itself");
        presence.health(Ok(()));
        assert_eq!(presence.away(), None);
    }

    #[test]
    fn what_calls_told_lapses_and_what_health_told_does_not() {
        let clock = Arc::new(ManualClock::at(UnixMs(100)));
        let presence = Presence::new(clock.clone()).believing_calls_for(Duration::from_secs(60));
        let since = || presence.away().map(|away| away.since.0);
        presence.call(Err("refused"));
        clock.advance_ms(59_999);
        presence.call(Err("refused"));
        clock.advance_ms(59_999);
        assert_eq!(since(), Some(100), "each failed call holds for a minute");
        clock.advance_ms(1);
        assert_eq!(since(), None, "nobody has called it for a minute");
        presence.call(Err("refused"));
        assert_eq!(since(), Some(120_099), "it may have been there in between");
        presence.health(Err("it answered 500"));
        clock.advance_ms(120_000);
        assert_eq!(since(), Some(120_099), "its health is asked again and again");
    }
}
