//! Leading routes: what the store believes of occurrences that are not final, compared
//! with the chain, in the one order that loses nothing: what is gone, which content is the
//! newest, what is there, what is final, and what is gone for good.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::decide::{self, Unsettled, Unsettleds};
use super::intake::height_of;
use super::source::Answered;
use super::window::Window;
use super::{Follower, Halt, Known, broken, rolled_back};
use crate::inbox::Standing;
use crate::listener::Cursor;
use crate::persist;
use crate::station::{StationError, seat_is_due};
use crate::store::ReadExt;
use crate::store::op::{
    Admission, Admit, Amend, Amendment, CursorMove, Effect, Lead, NewRequest, Op, Outcome, Seat, Stale,
};
use crate::store::policy::OnDuplicate;
use crate::store::query::{Found, ListFilter, Page, RequestView};
use crate::words::{
    Height, ListenerName, OccurrenceId, OriginName, PAGE_MAX, Place, RequestId, RouteName, Token, UnixMs,
};

/// Most amendments in one commit.
const AMEND_MAX: usize = 1024;
/// How long giving up the seats may take.
const STEP_DOWN_WITHIN: Duration = Duration::from_secs(5);

/// A route that is led, or would be.
struct Led {
    route: RouteName,
    /// The cursor that says how far the route is settled.
    settled_by: ListenerName,
    settled: Option<Cursor>,
    seat: Option<Token>,
    /// When it was last asked for, by our own clock.
    seat_asked_at: Option<UnixMs>,
    listed_at: UnixMs,
}

/// A request of which the chain has shown different contents.
struct Contest {
    route: RouteName,
    /// Not decided before this height was read.
    height: Height,
}

/// What is known of the routes that are led.
#[derive(Default)]
pub(super) struct Leads {
    routes: Vec<Led>,
    unsettled: Unsettleds,
    /// Requests of which the chain has shown different contents.
    contested: BTreeMap<RequestId, Contest>,
    /// Whether anything happened since the last amendments.
    pub(super) changed: bool,
}

impl Leads {
    /// Nothing is led yet.
    pub(super) fn of(origin: &OriginName, routes: &[RouteName]) -> Result<Leads, StationError> {
        let led = |route: &RouteName| {
            let name = format!("lead:{route}@{origin}");
            let too_long = |_| {
                StationError::Broken(format!(
                    "{name} is too long for a cursor: shorten the route's or the origin's name"
                ))
            };
            let settled_by = ListenerName::new(&name).map_err(too_long)?;
            let (route, never) = (route.clone(), UnixMs(0));
            Ok(Led { route, settled_by, settled: None, seat: None, seat_asked_at: None, listed_at: never })
        };
        let routes: Result<Vec<Led>, StationError> = routes.iter().map(led).collect();
        Ok(Leads { routes: routes?, ..Leads::default() })
    }

    fn token(&self, route: &RouteName) -> Option<Token> {
        let led = self.routes.iter().find(|led| led.route == *route)?;
        led.seat
    }

    /// The amendments that end what was answered elsewhere, on the routes that are led.
    pub(super) fn ends(&self, answered: &[Answered]) -> Vec<Amend> {
        let end = |answered: &Answered| {
            let lead = self.token(&answered.route)?;
            Some(Amend { lead, change: Amendment::Elsewhere { id: answered.id } })
        };
        answered.iter().filter_map(end).collect()
    }

    /// Somebody else has the seat: what is known of the route is out of date from now on.
    fn resign(&mut self, route: &RouteName) {
        if let Some(led) = self.routes.iter_mut().find(|led| led.route == *route) {
            led.seat = None;
        }
        self.unsettled.retain(|_, known| known.route != *route);
        self.contested.retain(|_, contest| contest.route != *route);
    }

    /// A reorg took away the blocks that showed these.
    pub(super) fn lose(&mut self, gone: &[OccurrenceId]) {
        for occurrence in gone {
            if let Some(known) = self.unsettled.get_mut(occurrence) {
                known.lost = true;
            }
        }
        self.changed = true;
    }

    /// Remembers what the store believes of what was admitted.
    pub(super) fn learn(&mut self, requests: &[NewRequest], admissions: &[Admission]) {
        for (request, admission) in requests.iter().zip(admissions) {
            if self.token(&request.route).is_none() {
                continue;
            }
            let (standing, placed) = match admission {
                Admission::Known { standing: Some(standing), .. } => (*standing, false),
                Admission::Known { standing: None, .. } | Admission::Dropped { .. } | Admission::Ended(_) => continue,
                _ => (request.standing, true),
            };
            if let Admission::Attached { same_content: false, .. } = admission {
                self.contest(request.id, &request.route, height_of(request));
            }
            if standing == Standing::Final {
                self.unsettled.remove(&request.occurrence);
                continue;
            }
            let open = Unsettled {
                route: request.route.clone(),
                id: request.id,
                height: height_of(request),
                placed,
                standing,
                lost: false,
                superseded: false,
            };
            match self.unsettled.get_mut(&request.occurrence) {
                Some(known) if !placed => known.lost = false,
                _ => {
                    self.unsettled.insert(request.occurrence, open);
                }
            }
        }
    }

    fn contest(&mut self, id: RequestId, route: &RouteName, height: Height) {
        let contest = self.contested.entry(id).or_insert(Contest { route: route.clone(), height });
        contest.height = contest.height.max(height);
    }

    /// Takes up what the store shows of one request of a route that is led.
    fn take_up(&mut self, view: &RequestView, origin: &OriginName, waits: bool) {
        if waits || view.revision > 0 {
            let places = view.occurrences.iter().filter_map(|shown| shown.place.as_ref());
            let heights = places.filter(|place| place.origin == *origin).map(|place| place.height);
            self.contest(view.id, &view.route, heights.max().unwrap_or(Height(0)));
        }
        for shown in view.occurrences.iter().filter(|shown| shown.standing != Standing::Final) {
            let Some(place) = shown.place.as_ref().filter(|place| place.origin == *origin) else { continue };
            let (route, id, standing) = (view.route.clone(), view.id, shown.standing);
            let known =
                Unsettled { route, id, height: place.height, placed: true, standing, lost: false, superseded: false };
            self.unsettled.insert(shown.id, known);
        }
    }

    /// Remembers what an amendment made the store believe.
    fn amended(&mut self, change: &Amendment, outcome: &Outcome) {
        let (Amendment::Orphan { occurrence }
        | Amendment::Include { occurrence, .. }
        | Amendment::Finalize { occurrence }
        | Amendment::Withdraw { occurrence }) = change
        else {
            return;
        };
        let Some(known) = self.unsettled.get_mut(occurrence) else { return };
        match (change, outcome) {
            // Signed bytes may be out: the outside decides, and then it is no longer here.
            (Amendment::Withdraw { .. }, Outcome::Stale(Stale::State(_))) => {}
            (Amendment::Orphan { .. }, outcome) if outcome.holds() => known.standing = Standing::Orphaned,
            (Amendment::Include { height, .. }, outcome) if outcome.holds() => {
                (known.standing, known.height, known.placed) = (Standing::Seen, *height, true);
            }
            (Amendment::Finalize { .. }, Outcome::Stale(Stale::Superseded)) => known.superseded = true,
            // Final or withdrawn now, ended, or final before.
            _ => {
                self.unsettled.remove(occurrence);
            }
        }
    }

    /// Requests are contested until what was shown of them is read, and the newest of it
    /// is final; what was superseded then stays so.
    fn drop_uncontested(&mut self, window: &Window) {
        let open = self.unsettled.values().filter(|known| !known.superseded);
        let open: BTreeSet<RequestId> = open.map(|known| known.id).collect();
        let read = |height: Height| window.tip().is_some_and(|tip| height <= tip.height);
        self.contested.retain(|id, contest| open.contains(id) || !read(contest.height));
        self.unsettled.retain(|_, known| !known.superseded || open.contains(&known.id));
    }
}

impl Follower {
    /// Keeps the seats, and takes those that are free.
    pub(super) async fn hold_seats(&self, known: &mut Known) -> Result<(), Halt> {
        for at in 0..known.leads.routes.len() {
            let (now, led) = (self.clock.now(), &known.leads.routes[at]);
            if seat_is_due(now, led.seat_asked_at, led.seat.is_some(), self.options.seat_ms) {
                known.leads.routes[at].seat_asked_at = Some(now);
                self.hold_seat(known, at).await?;
            }
            let led = &known.leads.routes[at];
            if led.seat.is_some() && now.since(led.listed_at) >= self.options.relist_ms {
                self.list_unsettled(known, at).await?;
            }
        }
        Ok(())
    }

    async fn hold_seat(&self, known: &mut Known, at: usize) -> Result<(), Halt> {
        let led = &mut known.leads.routes[at];
        let (route, before) = (led.route.clone(), led.seat);
        let seat = Seat::Feed(route.clone(), self.origin.clone());
        let lead = Lead { seat, holder: self.holder.clone(), ttl_ms: self.options.seat_ms };
        match persist::apply_one(&*self.store, lead).await? {
            Outcome::Applied(Effect::Led(token, _)) if before == Some(token) => {}
            Outcome::Applied(Effect::Led(token, _)) => {
                known.leads.resign(&route);
                self.take_over(known, at).await?;
                known.leads.routes[at].seat = Some(token);
            }
            Outcome::Stale(Stale::Seat { .. }) => known.leads.resign(&route),
            other => return Err(broken(format!("the seat of route {route} was refused: {other:?}"))),
        }
        Ok(())
    }

    /// Starts where the lead before left off, if it left anything.
    async fn take_over(&self, known: &mut Known, at: usize) -> Result<(), Halt> {
        let settled = self.cursor(&known.leads.routes[at].settled_by).await?;
        known.leads.routes[at].settled = settled;
        self.list_unsettled(known, at).await?;
        let route = &known.leads.routes[at].route;
        let left = known.leads.unsettled.values().any(|open| open.route == *route)
            || known.leads.contested.values().any(|contest| contest.route == *route);
        let settled = settled.map(|cursor| cursor.at);
        let first = self.options.from_block;
        // Where nobody led before, from the first block; never from one that is ahead.
        let from = settled.map_or(first, |settled| Height(settled.height.0.saturating_add(1)));
        if left && from < known.window.start(first) {
            tracing::info!(listener = %self.listener, %route, from = ?settled.map(|at| at.height.0), "blocks are read again to settle what is left");
            known.window = Window::from(settled);
            known.ahead.clear();
        }
        Ok(())
    }

    /// Takes up all that is not final in the store.
    async fn list_unsettled(&self, known: &mut Known, at: usize) -> Result<(), Halt> {
        let (listed_at, route) = (self.clock.now(), known.leads.routes[at].route.clone());
        let line_is_content = self.line_is_content(&route).await?;
        let before = known.leads.unsettled.clone();
        known.leads.unsettled.retain(|_, open| open.route != route);
        let mut after = None;
        loop {
            let filter = ListFilter { route: Some(route.clone()), after, limit: PAGE_MAX, ..ListFilter::default() };
            let page = self.page(filter).await?;
            for view in &page.requests {
                known.leads.take_up(view, &self.origin, view.behind && line_is_content);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for (occurrence, open) in before.iter().filter(|(_, open)| open.lost) {
            if let Some(known) = known.leads.unsettled.get_mut(occurrence).filter(|known| known.route == open.route) {
                known.lost = true;
            }
        }
        known.leads.routes[at].listed_at = listed_at;
        known.leads.changed = true;
        Ok(())
    }

    async fn page(&self, filter: ListFilter) -> Result<Page, Halt> {
        Ok(persist::read(|| self.store.list(filter.clone())).await?)
    }

    /// Whether a route's requests wait behind others only because their content differs.
    async fn line_is_content(&self, route: &RouteName) -> Result<bool, Halt> {
        let routes = persist::read(|| self.store.routes()).await?;
        let view = routes.iter().find(|view| view.name == *route);
        Ok(view.is_some_and(|view| view.policy.on_duplicate != OnDuplicate::NewGeneration))
    }

    /// Tells the store what became of what is not final there. `level` says whether all
    /// that there is was read.
    pub(super) async fn amend(&self, known: &mut Known, level: bool) -> Result<(), Halt> {
        if !known.leads.changed {
            return Ok(());
        }
        let plan = decide::amend(&known.leads.unsettled, &known.window, level);
        let gone = self.orphans(known, &plan.gone).await?;
        self.make(known, gone).await?;
        let newest = self.supersede(known).await?;
        // What was superseded with is open again.
        let plan = decide::amend(&known.leads.unsettled, &known.window, level);
        self.make(known, plan.settled).await?;
        if newest {
            known.leads.drop_uncontested(&known.window);
            self.settle_routes(known).await?;
            self.prune(known);
            known.leads.changed = false;
        }
        Ok(())
    }

    /// What is gone is orphaned. What was in a block that was never read here is looked
    /// for there first: the store may know of it from a listener that started earlier.
    async fn orphans(&self, known: &Known, gone: &[OccurrenceId]) -> Result<Vec<Amendment>, Halt> {
        let (mut orphans, mut found) = (Vec::new(), Vec::new());
        for &occurrence in gone {
            let Some(open) = known.leads.unsettled.get(&occurrence) else { continue };
            let unread = open.height < known.window.start(self.options.from_block);
            match unread && self.shown_at(open.height, &occurrence).await?.is_some() {
                true => found.push(Amendment::Finalize { occurrence }),
                false => orphans.push(Amendment::Orphan { occurrence }),
            }
        }
        orphans.append(&mut found);
        Ok(orphans)
    }

    /// What an occurrence shows, if it is in this block.
    async fn shown_at(&self, height: Height, occurrence: &OccurrenceId) -> Result<Option<NewRequest>, Halt> {
        let blocks = self.source.blocks(height, height).await?;
        let mut shown = blocks.into_iter().filter(|block| block.at.height == height).flat_map(|block| block.requests);
        Ok(shown.find(|request| request.occurrence == *occurrence))
    }

    /// Gives every contested request the content that its newest event shows; `false` if
    /// the chain has changed since it was read, which the next look shows.
    async fn supersede(&self, known: &mut Known) -> Result<bool, Halt> {
        let mut all = true;
        let contested: Vec<RequestId> = known.leads.contested.keys().copied().collect();
        for id in contested {
            let Some(live) = self.live(id).await? else {
                known.leads.contested.remove(&id);
                continue;
            };
            let Some((occurrence, height)) = decide::newest(&known.window, &live, &self.origin) else { continue };
            let Some(shown) = self.shown_at(height, &occurrence).await? else {
                all = false;
                continue;
            };
            let place = Some(Place { origin: self.origin.clone(), height });
            let NewRequest { payload, deadline, .. } = shown;
            let change = Amendment::Supersede { id, occurrence, place, payload, deadline };
            let Some(lead) = known.leads.token(&live.route) else { continue };
            let outcome = persist::apply_one(&*self.store, Amend { lead, change }).await?;
            if !self.heard(known, &live.route, &outcome)? || !outcome.holds() {
                continue;
            }
            let (route, standing) = (live.route, Standing::Seen);
            let open = Unsettled { route, id, height, placed: false, standing, lost: false, superseded: false };
            known.leads.unsettled.insert(occurrence, open);
        }
        Ok(all)
    }

    async fn live(&self, id: RequestId) -> Result<Option<RequestView>, Halt> {
        match persist::read(|| self.store.get(id)).await? {
            Some(Found::Live(view, _)) => Ok(Some(*view)),
            _ => Ok(None),
        }
    }

    /// Makes amendments, in their order, and remembers what the store believes then.
    async fn make(&self, known: &mut Known, changes: Vec<Amendment>) -> Result<(), Halt> {
        for changes in changes.chunks(AMEND_MAX) {
            let mut made = Vec::new();
            for change in changes {
                let Some(route) = known.leads.route_of(change) else { continue };
                let Some(lead) = known.leads.token(&route) else { continue };
                made.push((route, Amend { lead, change: change.clone() }));
            }
            if made.is_empty() {
                continue;
            }
            let batch: Vec<Op> = made.iter().map(|(_, amend)| Op::Amend(amend.clone())).collect();
            let outcomes = persist::apply(&*self.store, batch).await?;
            for ((route, amend), outcome) in made.iter().zip(&outcomes) {
                if self.heard(known, route, outcome)? {
                    known.leads.amended(&amend.change, outcome);
                }
            }
        }
        Ok(())
    }

    /// Whether the store still takes this follower for the lead of the route.
    fn heard(&self, known: &mut Known, route: &RouteName, outcome: &Outcome) -> Result<bool, Halt> {
        match outcome {
            Outcome::Stale(Stale::RolledBack) => Err(rolled_back()),
            Outcome::Stale(Stale::Seat { .. }) => {
                tracing::warn!(listener = %self.listener, %route, "somebody else leads this route now");
                known.leads.resign(route);
                Ok(false)
            }
            Outcome::Invalid(reason) => {
                tracing::error!(listener = %self.listener, %route, %reason, "an amendment was refused");
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    /// Writes down how far each route is settled.
    async fn settle_routes(&self, known: &mut Known) -> Result<(), Halt> {
        let (mut moved, mut batch) = (Vec::new(), Vec::new());
        for (at, led) in known.leads.routes.iter().enumerate().filter(|(_, led)| led.seat.is_some()) {
            let Some(next) = decide::settled_to(&known.leads.unsettled, &known.window, &led.route) else { continue };
            if led.settled.is_none_or(|settled| settled.at.height < next.height) {
                let cursor = CursorMove { listener: led.settled_by.clone(), expected: led.settled, next };
                moved.push(at);
                batch.push(Op::Admit(Admit { cursor: Some(cursor), requests: Vec::new() }));
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        let outcomes = persist::apply(&*self.store, batch).await?;
        for (at, outcome) in moved.into_iter().zip(outcomes) {
            let led = &mut known.leads.routes[at];
            match outcome {
                Outcome::Applied(Effect::Admitted(_, cursor)) | Outcome::Duplicate(Effect::Admitted(_, cursor)) => {
                    led.settled = cursor;
                }
                Outcome::Stale(Stale::Cursor(held)) => led.settled = held,
                Outcome::Stale(Stale::RolledBack) => return Err(rolled_back()),
                other => return Err(broken(format!("the cursor {} was refused: {other:?}", led.settled_by))),
            }
        }
        Ok(())
    }

    /// Forgets the blocks that nobody needs any longer.
    fn prune(&self, known: &mut Known) {
        let led = known.leads.routes.iter().filter(|led| led.seat.is_some());
        let marks = led.map(|led| led.settled).chain(std::iter::once(known.cursor));
        let heights = marks.map(|mark| mark.map(|cursor| cursor.at.height));
        if let Some(height) = heights.min().flatten() {
            known.window.prune(height);
        }
    }

    /// Gives the seats up.
    pub(super) async fn step_down(&self, leads: &Leads) {
        let lead = |led: &Led| {
            let seat = Seat::Feed(led.route.clone(), self.origin.clone());
            Op::Lead(Lead { seat, holder: self.holder.clone(), ttl_ms: 0 })
        };
        let batch: Vec<Op> = leads.routes.iter().filter(|led| led.seat.is_some()).map(lead).collect();
        let given_up = tokio::time::timeout(STEP_DOWN_WITHIN, persist::apply(&*self.store, batch)).await;
        if !matches!(given_up, Ok(Ok(_))) {
            tracing::warn!(listener = %self.listener, "the seats of routes were not given up: they run out by themselves");
        }
    }
}

impl Leads {
    /// The route of the request that an amendment is about, while that is open.
    fn route_of(&self, change: &Amendment) -> Option<RouteName> {
        match change {
            Amendment::Orphan { occurrence }
            | Amendment::Include { occurrence, .. }
            | Amendment::Finalize { occurrence }
            | Amendment::Withdraw { occurrence } => self.unsettled.get(occurrence).map(|known| known.route.clone()),
            Amendment::Supersede { id, .. } | Amendment::Elsewhere { id } => {
                self.contested.get(id).map(|contest| contest.route.clone())
            }
        }
    }
}
