//! States as people and their scripts name them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::inbox::{End, StateKind};

/// Where a request is, or how it ended. A dead letter is live, and may be mended; what nobody
/// will try again has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Not yet due, or not yet final enough.
    Held,
    /// Ready for a worker.
    Queued,
    /// In a worker's hand.
    Leased,
    /// Answered, waiting for finality.
    Waiting,
    /// Answered and ready to be sent.
    Ready,
    /// On a slot of a lane.
    Assigned,
    /// In a block.
    Included,
    /// At the route's depth.
    Confirmed,
    /// A dead letter.
    Dead,
    /// Ended: the answer is where it was wanted.
    Settled,
    /// Ended: it failed for good.
    Failed,
    /// Ended: the deadline came first.
    Expired,
    /// Ended: taken back.
    Withdrawn,
    /// Ended: somebody else answered.
    Elsewhere,
}

impl Stage {
    /// All of them, in the order of the flow.
    pub const ALL: [Stage; 14] = [
        Stage::Held,
        Stage::Queued,
        Stage::Leased,
        Stage::Waiting,
        Stage::Ready,
        Stage::Assigned,
        Stage::Included,
        Stage::Confirmed,
        Stage::Dead,
        Stage::Settled,
        Stage::Failed,
        Stage::Expired,
        Stage::Withdrawn,
        Stage::Elsewhere,
    ];

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Held => "held",
            Stage::Queued => "queued",
            Stage::Leased => "leased",
            Stage::Waiting => "waiting",
            Stage::Ready => "ready",
            Stage::Assigned => "assigned",
            Stage::Included => "included",
            Stage::Confirmed => "confirmed",
            Stage::Dead => "dead",
            Stage::Settled => "settled",
            Stage::Failed => "failed",
            Stage::Expired => "expired",
            Stage::Withdrawn => "withdrawn",
            Stage::Elsewhere => "elsewhere",
        }
    }

    /// Whether a request that is there is live.
    pub fn is_live(self) -> bool {
        self <= Stage::Dead
    }

    /// Where a live request of this state is.
    pub fn of_live(state: StateKind) -> Stage {
        match state {
            StateKind::Held => Stage::Held,
            StateKind::Queued => Stage::Queued,
            StateKind::Leased => Stage::Leased,
            StateKind::Waiting => Stage::Waiting,
            StateKind::Ready => Stage::Ready,
            StateKind::Assigned => Stage::Assigned,
            StateKind::Included => Stage::Included,
            StateKind::Confirmed => Stage::Confirmed,
            StateKind::Dead => Stage::Dead,
            StateKind::Settled => Stage::Settled,
            StateKind::Expired => Stage::Expired,
            StateKind::Withdrawn => Stage::Withdrawn,
            StateKind::Elsewhere => Stage::Elsewhere,
        }
    }
}

impl From<End> for Stage {
    fn from(end: End) -> Stage {
        match end {
            End::Settled => Stage::Settled,
            End::Dead => Stage::Failed,
            End::Expired => Stage::Expired,
            End::Withdrawn => Stage::Withdrawn,
            End::Elsewhere => Stage::Elsewhere,
        }
    }
}

/// A word for no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no state: use {words}, or live, answered or ended for several", words = words())]
pub struct UnknownState(String);

fn words() -> String {
    Stage::ALL.map(Stage::word).join(", ")
}

/// The states that a word means, from the most general word to the most special.
fn meant(word: &str) -> Result<(u8, Vec<Stage>), UnknownState> {
    let which = |wanted: fn(Stage) -> bool| Stage::ALL.into_iter().filter(|stage| wanted(*stage)).collect::<Vec<_>>();
    match word {
        "live" => Ok((0, which(Stage::is_live))),
        "ended" => Ok((0, which(|stage| !stage.is_live()))),
        "answered" => Ok((1, which(|stage| (Stage::Waiting..=Stage::Confirmed).contains(&stage)))),
        _ => {
            let one = Stage::ALL.into_iter().find(|stage| stage.word() == word);
            Ok((2, vec![one.ok_or_else(|| UnknownState(word.to_owned()))?]))
        }
    }
}

/// Some states. In a file: a list of words, where `live`, `answered` and `ended` stand for several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct States(BTreeSet<Stage>);

impl States {
    /// These.
    pub fn new(stages: impl IntoIterator<Item = Stage>) -> States {
        States(stages.into_iter().collect())
    }

    /// All in which a request is live.
    pub fn live() -> States {
        States::new(Stage::ALL.into_iter().filter(|stage| stage.is_live()))
    }

    /// All ends.
    pub fn ended() -> States {
        States::new(Stage::ALL.into_iter().filter(|stage| !stage.is_live()))
    }

    /// Whether this is one of them.
    pub fn has(&self, stage: Stage) -> bool {
        self.0.contains(&stage)
    }

    pub(super) fn has_live(&self) -> bool {
        self.0.iter().any(|stage| stage.is_live())
    }
}

impl Default for States {
    fn default() -> States {
        States::live()
    }
}

impl TryFrom<Vec<String>> for States {
    type Error = UnknownState;

    fn try_from(words: Vec<String>) -> Result<States, UnknownState> {
        let stages = words.iter().map(|word| Ok(meant(word)?.1)).collect::<Result<Vec<_>, UnknownState>>()?;
        Ok(States(stages.into_iter().flatten().collect()))
    }
}

impl From<States> for Vec<String> {
    fn from(states: States) -> Vec<String> {
        states.0.into_iter().map(|stage| stage.word().to_owned()).collect()
    }
}

/// Words of the user's for states. In a file: a table from a state, or `live`, `answered` or
/// `ended` for several, to its word; the more special counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Words(BTreeMap<Stage, String>);

impl Words {
    /// These words.
    pub fn new<'a>(words: impl IntoIterator<Item = (Stage, &'a str)>) -> Words {
        Words(words.into_iter().map(|(stage, word)| (stage, word.to_owned())).collect())
    }

    /// The word for a state: its own, if there is no other.
    pub fn of(&self, stage: Stage) -> &str {
        self.0.get(&stage).map_or(stage.word(), String::as_str)
    }
}

impl TryFrom<BTreeMap<String, String>> for Words {
    type Error = UnknownState;

    fn try_from(words: BTreeMap<String, String>) -> Result<Words, UnknownState> {
        let mut meant = words
            .into_iter()
            .map(|(state, word)| meant(&state).map(|(rank, stages)| (rank, stages, word)))
            .collect::<Result<Vec<_>, UnknownState>>()?;
        meant.sort_by_key(|(rank, ..)| *rank);
        let each =
            meant.into_iter().flat_map(|(_, stages, word)| stages.into_iter().map(move |stage| (stage, word.clone())));
        Ok(Words(each.collect()))
    }
}

impl From<Words> for BTreeMap<String, String> {
    fn from(words: Words) -> BTreeMap<String, String> {
        words.0.into_iter().map(|(stage, word)| (stage.word().to_owned(), word)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn general_words_give_way_to_special_ones() {
        let words: Words =
            serde_json::from_str(r#"{"ready":"sending","live":"pending","answered":"done","leased":"busy"}"#).unwrap();
        let said = [Stage::Held, Stage::Leased, Stage::Waiting, Stage::Ready, Stage::Settled]
            .map(|stage| words.of(stage).to_owned());
        assert_eq!(said, ["pending", "busy", "done", "sending", "settled"]);
    }

    #[test]
    fn every_state_has_a_word_that_is_read_back() {
        let all: States = serde_json::from_str(r#"["live","ended"]"#).unwrap();
        assert_eq!(all, States::new(Stage::ALL));
        assert_eq!(serde_json::from_str::<States>(&serde_json::to_string(&all).unwrap()).unwrap(), all);
        assert!(States::ended().has(Stage::Failed) && !States::ended().has(Stage::Dead));
        let unknown = serde_json::from_str::<States>(r#"["done"]"#).unwrap_err();
        assert!(unknown.to_string().contains("\"done\" is no state: use held, queued"), "{unknown}");
        for state in StateKind::LIVE {
            assert!(Stage::of_live(state).is_live());
        }
    }
}
