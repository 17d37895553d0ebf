//! What is watched: which logs make requests, as this side and as nodes and blooms see it.

use alloy::primitives::{Address, B256, Bloom, BloomInput};
use roundtrip::inbox::Identity;
use roundtrip::words::{Moment, OriginName, RouteName, UnixMs};
use serde_json::{Value, json};

use super::event::{Arguments, BadDeadline, BadFilter, EventSignature};

/// Most topics that a log can have.
const TOPICS_MAX: usize = 4;

/// Which events make requests on a route. A route may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The route that the requests take.
    pub route: RouteName,
    /// The event.
    pub event: EventSignature,
    /// The contracts that emit it; any contract if empty.
    pub addresses: Vec<Address>,
    /// What makes it the same request, as the route's policy says. With
    /// [`Identity::Given`] each log is a request of its own.
    pub identity: Identity,
    topics: Topics,
    shows: Shows,
    deadline: Option<Deadline>,
}

/// Which argument says until when an answer is of use, and by whose clock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Deadline {
    argument: String,
    origin: OriginName,
}

/// What it means that a log is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// Something is asked for.
    Request,
    /// What was asked for was answered.
    Answer,
}

/// An event that shows answers and cannot say to what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answers of {0} cannot be matched to requests: give the route an identity of fields that both events have")]
pub struct NoMatch(String);

/// An event whose requests lack what makes their ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no request could have an id: {0}")]
pub struct NoIdentity(String);

/// What the topics of a log must be, by their places; nothing at a place means anything.
type Topics = [Vec<B256>; TOPICS_MAX];

impl Watch {
    /// All logs of an event, of any contract.
    ///
    /// The logs of an anonymous event are told from others by nothing but their form: name
    /// the contracts.
    pub fn new(route: RouteName, event: EventSignature, identity: Identity) -> Watch {
        let mut topics = Topics::default();
        topics[0].extend(event.topic());
        Watch { route, event, addresses: Vec::new(), identity, topics, shows: Shows::Request, deadline: None }
    }

    /// All logs of an event by which the chain shows that a request was answered, by whomever:
    /// the one of the same identity, whose fields this event must have too. It ends once the
    /// block that shows it is final, unless an answer of ours is under way.
    pub fn answers(route: RouteName, event: EventSignature, identity: Identity) -> Result<Watch, NoMatch> {
        if !matches!(identity, Identity::Fields(_)) {
            return Err(NoMatch(event.signature().to_owned()));
        }
        Ok(Watch { shows: Shows::Answer, ..Watch::new(route, event, identity) })
    }

    /// Whether the event has every field that makes a request's id; one without would only make dead letters.
    pub fn check_identity(&self) -> Result<(), NoIdentity> {
        let Identity::Fields(fields) = &self.identity else { return Ok(()) };
        fields.iter().try_for_each(|field| self.event.field(field.as_str()).map(drop)).map_err(NoIdentity)
    }

    /// What it means that one of those is there.
    pub(super) fn shows(&self) -> Shows {
        self.shows
    }

    /// Only those of these contracts.
    #[must_use]
    pub fn at(mut self, addresses: impl IntoIterator<Item = Address>) -> Watch {
        self.addresses.extend(addresses);
        self
    }

    /// Only those whose indexed argument has one of these values, as a request's payload
    /// would show it.
    pub fn only(mut self, argument: &str, values: &[Value]) -> Result<Watch, BadFilter> {
        let (at, topics) = self.event.topics_of(argument, values)?;
        if let Some(wanted) = self.topics.get_mut(at) {
            *wanted = topics;
        }
        Ok(self)
    }

    /// An answer is of use until the time that this argument names, in seconds since 1970 as
    /// contracts count them, by the blocks of an origin: the one that this chain is followed as.
    /// What the chain itself would refuse by then expires here, no sooner and by no other clock.
    pub fn until(mut self, argument: &str, origin: OriginName) -> Result<Watch, BadDeadline> {
        self.event.check_deadline(argument)?;
        self.deadline = Some(Deadline { argument: argument.to_owned(), origin });
        Ok(self)
    }

    /// Until when an answer to a log with these arguments is of use.
    pub(super) fn deadline(&self, args: &Arguments<'_>) -> Option<Moment> {
        let Deadline { argument, origin } = self.deadline.as_ref()?;
        // More seconds than fit are a time that never comes.
        let seconds: u64 = args.number(argument)?.saturating_to();
        Some(Moment::BlockTime { origin: origin.clone(), at: UnixMs(seconds.saturating_mul(1000)) })
    }

    /// Whether a log is one of those.
    pub(super) fn wants(&self, address: &Address, topics: &[B256]) -> bool {
        let from = self.addresses.is_empty() || self.addresses.contains(address);
        // What carries the event's first topic and has another number of them is its log all
        // the same, and cannot be decoded.
        let form = self.event.topic().is_some() || topics.len() == self.event.topics();
        let fits = |(at, wanted): (usize, &Vec<B256>)| {
            wanted.is_empty() || topics.get(at).is_some_and(|topic| wanted.contains(topic))
        };
        from && form && self.topics.iter().enumerate().all(fits)
    }

    /// Whether a block's bloom says that it may show one of those.
    fn may_be_in(&self, bloom: &Bloom) -> bool {
        let has = |bytes: &[u8]| bloom.contains_input(BloomInput::Raw(bytes));
        let from = self.addresses.is_empty() || self.addresses.iter().any(|address| has(address.as_slice()));
        let shows = |wanted: &Vec<B256>| wanted.is_empty() || wanted.iter().any(|topic| has(topic.as_slice()));
        from && self.topics.iter().all(shows)
    }
}

/// Whether a block's bloom says that it may show what is watched.
pub(super) fn may_show(bloom: &Bloom, watches: &[Watch]) -> bool {
    // Where anything would do, an empty bloom still says that nothing is there.
    *bloom != Bloom::ZERO && watches.iter().any(|watch| watch.may_be_in(bloom))
}

/// Adds to a filter for a node what every watch wants together; what fits together is
/// sorted out here.
pub(super) fn filter(range: Value, watches: &[Watch]) -> Value {
    let mut filter = range;
    if watches.iter().all(|watch| !watch.addresses.is_empty()) {
        filter["address"] = json!(distinct(watches.iter().flat_map(|watch| watch.addresses.iter().copied())));
    }
    let wanted = |at: usize| match watches.iter().any(|watch| watch.topics[at].is_empty()) {
        true => None,
        false => Some(distinct(watches.iter().flat_map(|watch| watch.topics[at].iter().copied()))),
    };
    let mut topics: Vec<Option<Vec<B256>>> = (0..TOPICS_MAX).map(wanted).collect();
    // A place that is named, even for anything, must be there.
    while topics.pop_if(|last| last.is_none()).is_some() {}
    filter["topics"] = json!(topics);
    filter
}

fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.collect::<std::collections::BTreeSet<T>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::U256;

    use super::*;

    fn watch(event: &str) -> Watch {
        Watch::new(RouteName::new("r").unwrap(), EventSignature::parse(event).unwrap(), Identity::Given)
    }

    const ASKED: &str = "Asked(uint256 indexed id, address indexed from)";
    const NOTED: &str = "event Noted(uint256 indexed id) anonymous";

    fn word(n: u8) -> B256 {
        B256::with_last_byte(n)
    }

    #[test]
    fn a_log_is_wanted_by_contract_event_and_values() {
        let (here, there) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let asked = watch(ASKED).event.topic().unwrap();
        let one = watch(ASKED).at([here]);
        let only = watch(ASKED).only("id", &[json!(7), json!(8)]).unwrap();
        let anonymous = watch(NOTED).at([here]);
        let cases: [(&Watch, Address, &[B256], bool); 11] = [
            (&one, here, &[asked, word(7), word(1)], true),
            (&one, there, &[asked, word(7), word(1)], false),
            (&one, here, &[word(9), word(7), word(1)], false),
            (&one, here, &[], false),
            // It says that it is one, and cannot be read.
            (&one, here, &[asked], true),
            (&only, there, &[asked, word(8), word(1)], true),
            (&only, there, &[asked, word(9), word(1)], false),
            (&only, there, &[asked], false),
            (&anonymous, here, &[word(7)], true),
            (&anonymous, here, &[word(7), word(8)], false),
            (&anonymous, there, &[word(7)], false),
        ];
        for (watch, address, topics, wanted) in cases {
            assert_eq!(watch.wants(&address, topics), wanted, "{:?} of {address}: {topics:?}", watch.event);
        }
    }

    #[test]
    fn a_deadline_is_in_seconds_by_the_blocks_of_the_chain() {
        let origin = OriginName::new("chain").unwrap();
        let asked = watch("Asked(uint256 indexed id, uint256 expiry)");
        let deadline = |watch: &Watch, expiry: U256| {
            let topics = [watch.event.topic().unwrap(), word(7)];
            watch.deadline(&watch.event.decode(&topics, &expiry.to_be_bytes::<32>()).unwrap())
        };
        assert_eq!(deadline(&asked, U256::from(60)), None, "it has none");
        let until = asked.until("expiry", origin.clone()).unwrap();
        let at = |ms| Some(Moment::BlockTime { origin: origin.clone(), at: UnixMs(ms) });
        assert_eq!(deadline(&until, U256::from(60)), at(60_000));
        assert_eq!(deadline(&until, U256::MAX), at(u64::MAX));
        let refused =
            |event: &str, argument: &str| watch(event).until(argument, origin.clone()).unwrap_err().to_string();
        let none = refused("Asked(uint256 indexed id)", "expiry");
        assert_eq!(none, "Asked(uint256) has no deadline expiry: it has no such argument");
        let text = refused("Asked(string expiry)", "expiry");
        assert_eq!(text, "Asked(string) has no deadline expiry: a string is no number of seconds");
        assert!(refused("Asked(int64 expiry)", "expiry").contains("int64"));
    }

    #[test]
    fn a_bloom_shows_what_is_watched_and_nothing_else() {
        let (here, there) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let mut bloom = Bloom::ZERO;
        bloom.accrue(BloomInput::Raw(here.as_slice()));
        bloom.accrue(BloomInput::Raw(watch(ASKED).event.topic().unwrap().as_slice()));
        bloom.accrue(BloomInput::Raw(word(7).as_slice()));
        let cases = [
            (watch(ASKED), true),
            (watch(ASKED).at([there, here]), true),
            (watch(ASKED).at([there]), false),
            (watch(ASKED).only("id", &[json!(7)]).unwrap(), true),
            (watch(ASKED).only("id", &[json!(8)]).unwrap(), false),
            (watch("Other()"), false),
            (watch(NOTED), true),
            (watch(NOTED).at([there]), false),
        ];
        for (watch, shown) in cases {
            assert_eq!(may_show(&bloom, std::slice::from_ref(&watch)), shown, "{watch:?}");
            assert!(!may_show(&Bloom::ZERO, &[watch]));
        }
        assert!(may_show(&bloom, &[watch("Other()"), watch(ASKED)]));
    }

    #[test]
    fn a_node_is_asked_for_all_that_is_wanted_and_little_else() {
        let (here, there) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let [asked, other] = [ASKED, "Other()"].map(|event| watch(event).event.topic().unwrap());
        let mut both = vec![asked, other];
        both.sort();
        let cases = [
            (vec![watch(ASKED)], json!({"topics": [[asked]]})),
            (
                vec![watch(ASKED).at([here]), watch("Other()").at([there, here])],
                json!({"address": [here, there], "topics": [both]}),
            ),
            (vec![watch(ASKED).at([here]), watch(ASKED)], json!({"topics": [[asked]]})),
            (
                vec![watch(ASKED).only("from", &[json!(here.to_string())]).unwrap()],
                json!({"topics": [[asked], null, [here.into_word()]]}),
            ),
            // An anonymous event may have no topic at all.
            (vec![watch("event Bare(uint8 a) anonymous").at([here])], json!({"address": [here], "topics": []})),
            (vec![watch(NOTED).at([here]), watch(ASKED).at([here])], json!({"address": [here], "topics": []})),
        ];
        for (watches, expected) in cases {
            assert_eq!(filter(json!({}), &watches), expected);
        }
    }
}
