//! Whether a tool can be asked, as its calls and its `/health` show: for whoever watches over requests that
//! wait for it.

use std::sync::{Arc, Mutex, PoisonError};

use roundtrip::clock::Clock;
use roundtrip::words::UnixMs;

/// Since when a tool is away, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Since when, without a success in between.
    pub since: UnixMs,
    /// What was last found, for the person who reads it.
    pub why: String,
}

/// What two witnesses say; each speaks for itself, since a tool that is well may still refuse every call.
#[derive(Debug, Default)]
struct Seen {
    by_health: Option<Away>,
    by_calls: Option<Away>,
}

/// Whether a tool can be asked; clones share it. It is there until somebody finds that it is not.
#[derive(Clone)]
pub struct Presence {
    seen: Arc<Mutex<Seen>>,
    clock: Arc<dyn Clock>,
}

impl Presence {
    /// Of a tool that nobody has asked yet, by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Presence {
        Presence { seen: Arc::default(), clock }
    }

    /// Since when it is away, if it is.
    pub fn away(&self) -> Option<Away> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.by_health.clone().or_else(|| seen.by_calls.clone())
    }

    /// What its `/health` came to.
    pub(crate) fn health(&self, came: Result<(), &str>) {
        self.note(came, |seen| &mut seen.by_health);
    }

    /// What a call came to: whether it got to it, not whether it did well.
    pub(crate) fn call(&self, came: Result<(), &str>) {
        self.note(came, |seen| &mut seen.by_calls);
    }

    fn note(&self, came: Result<(), &str>, of: impl Fn(&mut Seen) -> &mut Option<Away>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let said = of(&mut seen);
        *said = came.err().map(|why| {
            let since = said.as_ref().map_or_else(|| self.clock.now(), |before| before.since);
            Away { since, why: why.to_owned() }
        });
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
}
