//! The configuration: one TOML file, overridden by the environment.
//!
//! ```text
//!   file ──▶ document ◀── environment
//!               │
//!               ├─ keys that nobody knows, values that do not fit ──▶ faults, each with its line
//!               └─ Config
//! ```
//!
//! Every fault is told at once, in plain words. What needs more than the file, such as a route that names a
//! chain that is not there, is for [`crate::plan`] to find; so what does not fit is taken out,
//! and the rest can be looked at.

mod fault;
mod file;
mod files;
mod model;
mod plain;
mod reference;
mod schema;
mod values;
mod work;

pub use fault::{Fault, Faults, Place};
pub use file::{Document, OVERRIDES, Path};
pub use model::*;
pub use reference::reference;
pub use schema::schema;
pub use values::{FinalBlocks, Span};
pub use work::*;

use plain::plainly;
use schema::{fitting, unknown_keys};

/// Most faults that are told of one file.
const FAULTS_MAX: usize = 100;

const NOT_A_SECRET: &str = "a secret is not written here but named: { env = \"NAME\" } or { file = \"path\" }, \
                            in a signer under its kind, such as { key = { env = \"NAME\" } }; what is there is not shown";

/// A configuration, and the document that it was read from, which knows where everything stands.
#[derive(Debug)]
pub struct Loaded {
    /// What it says.
    pub config: Config,
    /// Where it says it.
    pub document: Document,
    /// What it says besides and could not be read.
    unread: Vec<Path>,
}

impl Loaded {
    /// A fault of the value at this path.
    pub fn fault(&self, path: &[&str], text: impl Into<String>) -> Fault {
        let path: Path = path.iter().map(|&part| part.to_owned()).collect();
        Fault { place: self.document.place(&path), path, text: text.into() }
    }

    /// Whether something here, or around it, or in it, could not be read: what else seems to be wrong with
    /// it may only follow from that.
    pub fn is_unread(&self, path: &[impl AsRef<str>]) -> bool {
        let along = |unread: &Path| unread.iter().zip(path).all(|(one, other)| one == other.as_ref());
        self.unread.iter().any(along)
    }
}

/// Reads a configuration of this text. Files that it names are in the folder of this file.
pub fn load(file: &str, text: &str, environment: impl IntoIterator<Item = (String, String)>) -> Result<Loaded, Faults> {
    match read(file, text, environment) {
        (Some(loaded), faults) => faults.unless_any(loaded),
        (None, faults) => Err(faults),
    }
}

/// Reads as much of a configuration as can be read, and says what is wrong with the rest.
pub fn read(
    file: &str,
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> (Option<Loaded>, Faults) {
    let mut document = match Document::read(file, text) {
        Ok(document) => document,
        Err(faults) => return (None, faults),
    };
    document.override_by(environment);
    let (mut faults, mut unread, mut filled) = (Faults::default(), Vec::<Path>::new(), Vec::<Path>::new());
    let schema = schema();
    for unknown in unknown_keys(&schema, &document.values) {
        let what = match unknown.meant {
            Some(meant) => format!("nobody knows this key; is `{meant}` meant?"),
            None => format!("nobody knows this key; known here: {}", unknown.known.join(", ")),
        };
        faults.0.push(Fault { place: document.place(&unknown.path), path: unknown.path.clone(), text: what });
        document.remove(&unknown.path);
        unread.push(unknown.path);
    }
    let config = loop {
        let error = match serde_path_to_error::deserialize::<_, Config>(document.values.clone()) {
            Ok(config) => break Some(config),
            Err(error) => error,
        };
        let (path, text) = (path_of(error.path()), error.inner().to_string());
        let missing = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        let place = missing.map(|key| [&path[..], &[key.to_owned()]].concat());
        // What is missing only because it was taken out has been told.
        if place.as_ref().is_none_or(|place| !unread.contains(place)) {
            let text = match missing {
                Some(key) => format!("`{key}` is missing"),
                None if is_secret(&path) => NOT_A_SECRET.to_owned(),
                None => plainly(&text),
            };
            faults.0.push(Fault { place: document.place(&path), path: path.clone(), text });
        }
        // Something takes the place of what is missing, so that what stands beside it is looked at.
        if let Some(place) = place.filter(|place| !filled.contains(place) && faults.0.len() < FAULTS_MAX)
            && let Some(value) = fitting(&schema, &place)
            && document.put(&place, value)
        {
            filled.push(place.clone());
            unread.push(place);
            continue;
        }
        // An item of a list cannot go without the others moving up: the whole list goes.
        let taken = (1..=path.len()).rev().map(|length| &path[..length]).find(|path| document.remove(path));
        match taken {
            Some(taken) if faults.0.len() < FAULTS_MAX => unread.push(taken.to_vec()),
            _ => break None,
        }
    };
    let folder = std::path::Path::new(file).parent().unwrap_or(std::path::Path::new(""));
    let settled = |mut config: Config| {
        config.settle_in(folder);
        Loaded { config, document, unread }
    };
    (config.map(settled), faults.in_order())
}

/// Whether a secret may have been written here: what is there must not be shown.
fn is_secret(path: &[String]) -> bool {
    const SECRETS: [&str; 4] = ["signer", "secret", "password", "public_key"];
    path.iter().any(|part| SECRETS.contains(&part.as_str()))
}

fn path_of(path: &serde_path_to_error::Path) -> Path {
    use serde_path_to_error::Segment;
    let part = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { variant } => Some(variant.clone()),
        Segment::Unknown => None,
    };
    path.iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let faults = load("r.toml", text, []).unwrap_err();
        faults.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_short_file_is_enough() {
        let loaded = load("r.toml", "[store]\nurl = \"memory:\"\n[routes.square]\n", []).unwrap();
        let route = &loaded.config.routes["square"];
        assert_eq!((route.lease, route.submit), (Span::ms(60_000), None));
        assert_eq!(loaded.config.api.listen.to_string(), "127.0.0.1:8080");
    }

    #[test]
    fn every_fault_is_told_with_its_line() {
        let text = r#"
[store]
uri = "memory:"

[routes.square]
lease = 5
identity = 7
on_duplicate = "atach"

[[routes.square.events]]
chain = "main"
"#;
        let expected = [
            "r.toml:2:2: store: `url` is missing",
            "r.toml:3:1: store.uri: nobody knows this key; is `url` meant?",
            "r.toml:6:1: routes.square.lease: 5 is no length of time: write \"500ms\", \"15s\" or \"1h 30m\"",
            "r.toml:7:1: routes.square.identity: write \"given\", \"content\", or a list of fields such as [\"/args/id\"]",
            "r.toml:8:1: routes.square.on_duplicate: nobody knows \"atach\"; is \"attach\" meant? Known here: \"attach\", \"drop\", \"rearm\", \"new_generation\", \"vote\"",
            "r.toml:10:1: routes.square.events.0: `event` is missing",
        ];
        assert_eq!(faults(text), expected);
    }

    /// Nor does what does not fit hide what is beside it.
    #[test]
    fn what_is_missing_hides_nothing_beside_it() {
        let text = r#"
[store]
[chains.main]
urls = ["http://h"]
quorum = "two"
[lanes.first]
sigher = 1
[destinations.board.transactions]
chain = "main"
window = -1
[destinations.hook.webhook]
timeout = 5
[[routes.price.events]]
chain = "main"
from_block = "first"
[[routes.price.events]]
event = "E()"
deadline = 7
[routes.price]
every = { perod = "1s" }
rate = { count = "many" }
[routes.price.work.grpc]
poll = { every = 1 }
"#;
        let (loaded, faults) = read("r.toml", text, []);
        let told: Vec<String> = faults.0.iter().map(ToString::to_string).collect();
        let expected = [
            "r.toml:2:2: store: `url` is missing",
            "r.toml:3:9: chains.main: `chain_id` is missing",
            "r.toml:5:1: chains.main.quorum: ",
            "r.toml:6:8: lanes.first: `signer` is missing",
            "r.toml:7:1: lanes.first.sigher: nobody knows this key; is `signer` meant?",
            "r.toml:8:21: destinations.board.transactions: `lanes` is missing",
            "r.toml:8:21: destinations.board.transactions: `contract` is missing",
            "r.toml:8:21: destinations.board.transactions: `function` is missing",
            "r.toml:10:1: destinations.board.transactions.window: ",
            "r.toml:11:20: destinations.hook.webhook: `url` is missing",
            "r.toml:11:20: destinations.hook.webhook: `secret` is missing",
            "r.toml:12:1: destinations.hook.webhook.timeout: ",
            "r.toml:13:1: routes.price.events.0: `event` is missing",
            "r.toml:15:1: routes.price.events.0.from_block: ",
            "r.toml:16:1: routes.price.events.1: `chain` is missing",
            "r.toml:18:1: routes.price.events.1.deadline: ",
            "r.toml:20:1: routes.price.every: `period` is missing",
            "r.toml:20:11: routes.price.every.perod: nobody knows this key; is `period` meant?",
            "r.toml:21:1: routes.price.rate: `per` is missing",
            "r.toml:21:10: routes.price.rate.count: ",
            "r.toml:22:20: routes.price.work.grpc: `urls` is missing",
            "r.toml:22:20: routes.price.work.grpc: `method` is missing",
            "r.toml:23:1: routes.price.work.grpc.poll: `method` is missing",
            "r.toml:23:1: routes.price.work.grpc.poll: `request` is missing",
            "r.toml:23:10: routes.price.work.grpc.poll.every: ",
        ];
        let all = told.join("\n");
        for (line, start) in told.iter().zip(expected) {
            assert!(line.starts_with(start), "{start} is not where it should be in:\n{all}");
        }
        assert_eq!(told.len(), expected.len(), "{all}");
        assert_eq!(loaded.unwrap().config.routes["price"].events.len(), 2, "the rest is looked at");
    }

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        let secret = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
        let texts = [
            format!("[lanes.a]\nsigner = \"{secret}\"\n"),
            format!("[lanes.a]\nsigner = {{ key = \"{secret}\" }}\n"),
            format!("[lanes.a]\nsigner = {{ mnemonic = \"{secret}\" }}\n"),
            format!("[lanes.a]\nsigner = {{ keystore = {{ file = \"k\", password = \"{secret}\" }} }}\n"),
            format!("[api.auth]\nsecret = \"{secret}\"\n"),
            format!("[destinations.a.webhook]\nurl = \"http://h\"\nsecret = \"{secret}\"\n"),
        ];
        for text in texts {
            let told = faults(&format!("{text}[store]\nurl = \"memory:\"\n")).join("\n");
            assert!(told.contains("what is there is not shown") && !told.contains("0xac0974"), "{told}");
        }
    }

    #[test]
    fn the_environment_has_its_place_too() {
        let set = [("ROUNDTRIP__ROUTES__SQUARE__LEASE".to_owned(), "soon".to_owned())];
        let faults = load("r.toml", "[store]\nurl = \"memory:\"\n", set).unwrap_err();
        let told = "ROUNDTRIP__ROUTES__SQUARE__LEASE: routes.square.lease: \"soon\" is no length of time: write \"500ms\", \"15s\" or \"1h 30m\"";
        assert_eq!(faults.to_string(), told);
    }
}
