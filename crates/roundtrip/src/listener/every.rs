//! A durable periodic source: one request for each tick of a named timer.
//!
//! Ticks are counted from 1970, so a tick's number and its time say the same to every
//! process and after every restart. The cursor holds the last tick that was admitted and
//! moves in the commit that admits the next, so each tick is admitted once: not twice
//! after a crash, and not twice by two processes that run the same timer.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::listener::{Cursor, Source};
use crate::persist;
use crate::station::{Shutdown, StationError};
use crate::store::op::{Admit, CursorMove, Effect, NewRequest, Outcome, Stale};
use crate::store::{ReadExt, Store};
use crate::words::{Height, ListenerName, OccurrenceId, Position, RequestId, UnixMs};

/// Most ticks in one commit.
const TICKS_MAX: u64 = 256;
/// Longest wait, so that a clock that was set is noticed.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long to wait when a route has no room.
const FULL_WAIT: Duration = Duration::from_millis(500);

/// One tick of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick {
    /// Its number: how many periods since 1970.
    pub number: u64,
    /// When it was due.
    pub at: UnixMs,
}

/// What becomes of ticks that nobody was there for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// Each is admitted, in order.
    All,
    /// Only the newest is.
    #[default]
    Latest,
}

/// What makes the request of a tick.
type Make = Box<dyn Fn(Tick) -> NewRequest + Send + Sync>;

/// A timer that admits a request at every tick, from its first start on.
pub struct Every {
    name: ListenerName,
    period_ms: u64,
    catch_up: CatchUp,
    make: Make,
}

impl Every {
    /// A timer of this name. The request's id and occurrence are those of the tick,
    /// whatever `make` says, so its route must take the ids that it is given. A period
    /// under a millisecond counts as one.
    pub fn new(
        name: ListenerName,
        period: Duration,
        make: impl Fn(Tick) -> NewRequest + Send + Sync + 'static,
    ) -> Every {
        Every { name, period_ms: ms(period), catch_up: CatchUp::default(), make: Box::new(make) }
    }

    /// What becomes of missed ticks.
    #[must_use]
    pub fn catch_up(mut self, catch_up: CatchUp) -> Every {
        self.catch_up = catch_up;
        self
    }

    /// The id of the request of a timer's tick. The period is part of it: after a change of
    /// period the same numbers may come again, as other ticks.
    pub fn id(name: &ListenerName, period: Duration, number: u64) -> RequestId {
        Every::id_of(name, ms(period), number)
    }

    fn id_of(name: &ListenerName, period_ms: u64, number: u64) -> RequestId {
        RequestId::of(&[b"tick", name.as_str().as_bytes(), &period_ms.to_le_bytes(), &number.to_le_bytes()])
    }

    fn request(&self, number: u64) -> NewRequest {
        let at = UnixMs(number.saturating_mul(self.period_ms));
        let id = Every::id_of(&self.name, self.period_ms, number);
        let occurrence = OccurrenceId::of(&[b"tick", id.as_bytes()]);
        NewRequest { id, occurrence, ..(self.make)(Tick { number, at }) }
    }

    /// The position of a tick; its hash is the period's, so that ticks of another period
    /// are told apart.
    fn position(&self, number: u64) -> Position {
        let hash = RequestId::of(&[b"period", &self.period_ms.to_le_bytes()]).0;
        Position { height: Height(number), hash }
    }
}

/// A period in milliseconds, one at least.
fn ms(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// What a timer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It has never run with this period: it starts from here, without a request.
    Begin(u64),
    /// It admits these ticks, both included.
    Admit(u64, u64),
    /// It waits for this tick.
    Wait(u64),
}

/// Decides by the last tick that was admitted, and the newest that is due.
fn decide(last: Option<u64>, newest: u64, catch_up: CatchUp) -> Step {
    match (last, catch_up) {
        (None, _) => Step::Begin(newest),
        // Also when the clock was set back: what was admitted is not admitted again.
        (Some(last), _) if newest <= last => Step::Wait(last + 1),
        (Some(_), CatchUp::Latest) => Step::Admit(newest, newest),
        (Some(last), CatchUp::All) => Step::Admit(last + 1, newest.min(last + TICKS_MAX)),
    }
}

impl Source for Every {
    async fn run(self, store: Arc<dyn Store>, clock: Arc<dyn Clock>, shutdown: Shutdown) -> Result<(), StationError> {
        let mut cursor = persist::read(|| store.cursor(self.name.clone())).await?;
        loop {
            let wait = self.run_once(&*store, clock.now(), &mut cursor).await?;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

impl Every {
    /// Does what is to be done now; answers how long to wait.
    async fn run_once(
        &self,
        store: &dyn Store,
        now: UnixMs,
        cursor: &mut Option<Cursor>,
    ) -> Result<Duration, StationError> {
        let newest = now.0 / self.period_ms;
        let same_period = |cursor: &Cursor| cursor.at.hash == self.position(0).hash;
        let last = (*cursor).filter(same_period).map(|cursor| cursor.at.height.0);
        let (to, requests) = match decide(last, newest, self.catch_up) {
            Step::Wait(next) => {
                let at = UnixMs(next.saturating_mul(self.period_ms));
                return Ok(Duration::from_millis(at.since(now)).min(WAIT_MAX));
            }
            Step::Begin(at) => (at, Vec::new()),
            Step::Admit(from, to) => (to, (from..=to).map(|number| self.request(number)).collect()),
        };
        let step = CursorMove { listener: self.name.clone(), expected: *cursor, next: self.position(to) };
        match persist::apply_one(store, Admit { cursor: Some(step), requests }).await? {
            Outcome::Applied(Effect::Admitted(_, moved)) | Outcome::Duplicate(Effect::Admitted(_, moved)) => {
                *cursor = moved;
                Ok(Duration::ZERO)
            }
            // Another process runs the same timer and was first.
            Outcome::Stale(Stale::Cursor(held)) => {
                *cursor = held;
                Ok(Duration::ZERO)
            }
            Outcome::Full(full) => {
                tracing::warn!(timer = %self.name, ?full, "no room for a tick; it waits");
                Ok(FULL_WAIT)
            }
            refused => Err(StationError::Broken(format!("timer {} cannot go on: {refused:?}", self.name))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::listener::request;
    use crate::words::{Payload, RouteName};

    #[test]
    fn a_number_is_another_tick_with_another_period() {
        let (name, route) = (ListenerName::new("timer").unwrap(), RouteName::new("route").unwrap());
        let tick = |period| {
            let route = route.clone();
            let make = move |_tick| request(&route, Payload::json("1"));
            let NewRequest { id, occurrence, .. } = Every::new(name.clone(), period, make).request(7);
            assert_eq!(id, Every::id(&name, period, 7));
            (id, occurrence)
        };
        let (second, two) = (tick(Duration::from_secs(1)), tick(Duration::from_secs(2)));
        assert_eq!(second, tick(Duration::from_millis(1000)));
        assert!(second.0 != two.0 && second.1 != two.1);
        assert_eq!(tick(Duration::ZERO), tick(Duration::from_millis(1)), "the shortest period there is");
    }

    #[test]
    fn a_timer_goes_on_from_the_last_tick() {
        let check = |last, newest, catch_up, step| assert_eq!(decide(last, newest, catch_up), step);
        for catch_up in [CatchUp::All, CatchUp::Latest] {
            check(None, 70, catch_up, Step::Begin(70));
            check(Some(70), 70, catch_up, Step::Wait(71));
            check(Some(70), 60, catch_up, Step::Wait(71));
            check(Some(70), 71, catch_up, Step::Admit(71, 71));
        }
        check(Some(70), 73, CatchUp::All, Step::Admit(71, 73));
        check(Some(70), 73, CatchUp::Latest, Step::Admit(73, 73));
        check(Some(0), 1_000_000, CatchUp::All, Step::Admit(1, TICKS_MAX));
    }
}
