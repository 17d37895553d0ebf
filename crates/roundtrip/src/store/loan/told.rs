//! Hints as one process tells another: its epoch, then a topic on each line.

use std::time::Duration;

use crate::store::{Hints, Topic};
use crate::words::{Destination, RouteName};

/// How often a silent connection that listens is asked whether it is still there.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long it may take to answer.
const HEARTBEAT_MAX: Duration = Duration::from_secs(5);
/// How long a broken connection is left alone.
pub(in crate::store) const RECONNECT: Duration = Duration::from_millis(500);
/// Stands for all topics.
const ALL: &str = "*";

/// How long a connection that carries hints may be silent.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Patience {
    /// Until it is asked whether it is still there.
    pub(in crate::store) unasked: Duration,
    /// Until it has answered.
    pub(in crate::store) asked: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { unasked: HEARTBEAT, asked: HEARTBEAT_MAX }
    }
}

/// What tells of everything.
pub(in crate::store) fn everything(epoch: u64) -> String {
    format!("{epoch}\n{ALL}")
}

/// A topic as a line.
pub(in crate::store) fn line(topic: &Topic) -> String {
    match topic {
        Topic::Inbox(route) => format!("inbox {route}"),
        Topic::Outbox(destination) => format!("outbox {destination}"),
        Topic::Amendments => "amendments".to_owned(),
        Topic::Journal => "journal".to_owned(),
    }
}

/// The topic of a line; none, if it stands for all or comes from a newer version.
fn read(line: &str) -> Option<Topic> {
    match line.split_once(' ') {
        Some(("inbox", route)) => RouteName::new(route).ok().map(Topic::Inbox),
        Some(("outbox", destination)) => Destination::new(destination).ok().map(Topic::Outbox),
        None if line == "amendments" => Some(Topic::Amendments),
        None if line == "journal" => Some(Topic::Journal),
        _ => None,
    }
}

/// Gives the hints that another process told of; this one need not hear of itself.
pub(in crate::store) fn give(hints: &Hints, told: &str, own_epoch: u64) {
    let mut lines = told.lines();
    if lines.next() == Some(own_epoch.to_string().as_str()) {
        return;
    }
    match lines.map(read).collect::<Option<Vec<Topic>>>() {
        Some(topics) => hints.give(topics),
        None => hints.give_all(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn topics_survive_the_wire() {
        let inbox = Topic::Inbox(RouteName::new("route").unwrap());
        let outbox = Topic::Outbox(Destination::new("chain").unwrap());
        for topic in [inbox, outbox, Topic::Amendments, Topic::Journal] {
            assert_eq!(read(&line(&topic)), Some(topic));
        }
        assert_eq!((read(ALL), read("weather fine")), (None, None));
    }
}
