//! Every kind of signer sends answers, and none of their secrets is to be found anywhere:
//! not in the log, in errors, in what is shown of them, or in the database.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy::hex;
use alloy::primitives::{Address, Bytes};
use alloy::signers::k256::elliptic_curve::rand_core::OsRng;
use alloy::signers::local::PrivateKeySigner;
use roundtrip::clock::{Clock, SystemClock};
use roundtrip::relay::Running;
use roundtrip::sender::{LaneStatus, Patience};
use roundtrip::store::{Options, ReadExt, SqliteStore, Store};
use roundtrip_evm::EvmChain;
use roundtrip_evm::sender::{LaneSigner, SecretSource, SignerSource, SignerUrl};
use roundtrip_evm::testkit::account::dev_key;
use roundtrip_evm::testkit::checker::check;
use roundtrip_evm::testkit::deployment::{Deployment, Pace, answer_to};
use roundtrip_evm::testkit::devchain::DevChain;
use roundtrip_evm::testkit::signer::RemoteSigner;
use roundtrip_evm::testkit::submitter::{Submitter, SubmitterOptions};

use super::heard::Heard;

/// The phrase whose accounts the first development keys are.
const PHRASE: &str = "test test test test test test test test test test test junk";
const PASSWORD: &str = "correct horse battery staple";
const ASKER: usize = 9;
const FINAL_DEPTH: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// A development chain with a board, and a store in a file.
struct World {
    chain: DevChain,
    board: Address,
    lanes: Vec<PrivateKeySigner>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    folder: tempfile::TempDir,
}

impl World {
    fn with(lanes: Vec<PrivateKeySigner>) -> World {
        let chain = DevChain::default();
        let accounts: Vec<Address> = lanes.iter().map(|lane| lane.address()).collect();
        let board = chain.deploy_board(&accounts);
        let folder = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let store = SqliteStore::open(folder.path().join("store.db"), clock.clone(), Options::default()).unwrap();
        World { chain, board, lanes, store: Arc::new(store), clock, folder }
    }

    fn deployment(&self) -> Deployment {
        let pace = Pace {
            poll: Duration::from_millis(20),
            hold_ms: 5_000,
            patience: Patience { resend_ms: 5_000, bump_ms: 600_000 },
            window: 4,
        };
        Deployment::on(&self.chain, self.board, self.lanes.clone(), FINAL_DEPTH, pace).unwrap()
    }

    async fn relay(&self, signers: Vec<LaneSigner>) -> Running {
        let chain: EvmChain = self.deployment().chain_of(signers).unwrap();
        let relay = self.deployment().relay_to(self.store.clone(), self.clock.clone(), Arc::new(chain)).unwrap();
        relay.start().await.unwrap()
    }

    fn ask(&self, payloads: &[Bytes]) -> Submitter {
        let options = SubmitterOptions { window: 100, depth: FINAL_DEPTH, ..SubmitterOptions::default() };
        Submitter::start(self.chain.client(), self.board, vec![dev_key(ASKER)], payloads.to_vec(), options)
    }

    /// Makes blocks until something is so.
    async fn mine_until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let started = Instant::now();
        while !so().await {
            assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
            self.chain.mine();
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn settled(&self, payloads: &[Bytes]) {
        let accounts: Vec<Address> = self.lanes.iter().map(|lane| lane.address()).collect();
        let clean = format!("settled {}, lost 0, doubled 0", payloads.len());
        let settled = async || {
            let verdict = check(&self.chain.client(), self.board, payloads, &accounts, answer_to).await.unwrap();
            verdict.to_string() == clean
        };
        self.mine_until("everything is answered once", settled).await;
    }
}

fn payloads(count: usize) -> Vec<Bytes> {
    (0..count).map(|n| format!("ask {n}").into_bytes().into()).collect()
}

fn remote(url: &str, address: Address) -> SignerSource {
    SignerSource::Remote { url: SignerUrl::new(url), address }
}

/// Whether a secret is in these bytes, in whatever case and form it may be written.
fn betrays(bytes: &[u8], secret: &[u8]) -> bool {
    let lower = bytes.to_ascii_lowercase();
    let shows = |needle: &[u8]| lower.windows(needle.len()).any(|part| part == needle);
    shows(&secret.to_ascii_lowercase()) || shows(hex::encode(secret).as_bytes())
}

/// The files of a folder.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
}

#[tokio::test]
async fn no_secret_of_any_signer_is_to_be_found() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let keys: Vec<PrivateKeySigner> = (0..5).map(dev_key).collect();
    let secret = |at: usize| hex::encode(keys[at].to_bytes());
    let secrets = tempfile::tempdir().unwrap();
    let at = |name: &str| secrets.path().join(name);
    std::fs::write(at("key"), format!("0x{}\n", secret(1))).unwrap();
    let key = keys[2].to_bytes();
    PrivateKeySigner::encrypt_keystore(secrets.path(), &mut OsRng, key, PASSWORD, Some("stored.json")).unwrap();
    let signer = RemoteSigner::serve(DevChain::default().chain_id(), vec![keys[4].clone()]).await.unwrap();
    let url = format!("{}/?token=sesame", signer.url());
    let env = |name: &str| SecretSource::Env(name.to_owned());
    let environment = |name: &str| match name {
        "KEY" => Some(secret(0)),
        "PASSWORD" => Some(PASSWORD.to_owned()),
        "PHRASE" => Some(PHRASE.to_owned()),
        _ => None,
    };
    let sources = [
        SignerSource::Key(env("KEY")),
        SignerSource::Key(SecretSource::File(at("key"))),
        SignerSource::Keystore { file: at("stored.json"), password: env("PASSWORD") },
        SignerSource::Mnemonic { phrase: env("PHRASE"), index: 3 },
        remote(&url, keys[4].address()),
    ];
    // What must not work, and what it says: one kind's secret given to another.
    let wrong = [
        SignerSource::Key(env("PHRASE")),
        SignerSource::Key(env("PASSWORD")),
        SignerSource::Keystore { file: at("stored.json"), password: env("KEY") },
        SignerSource::Keystore { file: at("key"), password: env("PASSWORD") },
        SignerSource::Mnemonic { phrase: env("KEY"), index: 0 },
        SignerSource::Mnemonic { phrase: env("PASSWORD"), index: 0 },
        remote(&url, keys[0].address()),
        remote("ftp://signer/sesame", keys[4].address()),
    ];
    let mut said = String::new();
    for source in &wrong {
        let error = source.open_in(&environment).await.err().unwrap();
        writeln!(said, "{error} {error:?} {source:?}").unwrap();
    }
    let world = World::with(keys.clone());
    let mut signers = Vec::new();
    for (source, key) in sources.iter().zip(&keys) {
        let signer = source.open_in(&environment).await.unwrap();
        assert_eq!(signer.address(), key.address(), "{source:?}");
        signers.push(signer);
        writeln!(said, "{source:?}").unwrap();
    }
    let payloads = payloads(50);
    let _asking = world.ask(&payloads);
    // Errors are where secrets show.
    signer.moods().refuses = Some("not now".to_owned());
    let relay = world.relay(signers).await;
    world.mine_until("a refusal is told", async || heard.text().contains("not now")).await;
    signer.moods().refuses = None;
    world.settled(&payloads).await;
    for lane in &world.lanes {
        assert!(world.chain.nonce(lane.address()) > 0, "{} was not used", lane.address());
    }
    drop(relay);

    let mut found = files(world.folder.path());
    let shows =
        |needle: &str| found.iter().any(|file| file.windows(needle.len()).any(|part| part == needle.as_bytes()));
    assert!(shows("ask 7") || shows("lane-0"), "the database was read");
    let log = heard.text();
    // Those that we build on log whole URLs, at levels that nobody turns on.
    let ours: Vec<&str> = log.lines().filter(|line| line.starts_with("roundtrip")).collect();
    assert!(!ours.is_empty() && !ours.iter().chain([&said.as_str()]).any(|line| line.contains("sesame")));
    found.extend([log.into_bytes(), said.into_bytes()]);
    let mut hidden: Vec<Vec<u8>> = keys.iter().map(|key| key.to_bytes().to_vec()).collect();
    hidden.extend([PHRASE, "test test", PASSWORD].map(|text| text.as_bytes().to_vec()));
    for secret in &hidden {
        for bytes in &found {
            assert!(!betrays(bytes, secret), "a secret of {} bytes shows", secret.len());
        }
    }
}

#[test]
fn a_secret_is_found_where_there_is_one() {
    let key = dev_key(0).to_bytes();
    for text in [hex::encode(key), hex::encode_upper(key), hex::encode_prefixed(key)] {
        assert!(betrays(format!("a {text} b").as_bytes(), key.as_slice()), "{text}");
    }
    assert!(betrays(&[&[1][..], key.as_slice()].concat(), key.as_slice()));
    assert!(betrays(b"Correct Horse Battery Staple", PASSWORD.as_bytes()));
    assert!(!betrays(b"nothing", PASSWORD.as_bytes()));
}

#[tokio::test]
async fn a_remote_signer_that_refuses_or_meddles_is_told_of_and_holds_up_its_lane_alone() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let keys: Vec<PrivateKeySigner> = (0..2).map(dev_key).collect();
    let world = World::with(keys.clone());
    let signer = RemoteSigner::serve(world.chain.chain_id(), vec![keys[1].clone()]).await.unwrap();
    let far = remote(signer.url(), keys[1].address()).open().await.unwrap();
    signer.moods().refuses = Some("signing is not allowed now".to_owned());
    let relay = world.relay(vec![Arc::new(keys[0].clone()), far]).await;
    let payloads = payloads(12);
    let _asking = world.ask(&payloads);
    world.settled(&payloads).await;
    assert_eq!(world.chain.nonce(keys[1].address()), 0, "nothing was signed for it");
    assert!(heard.text().contains("signing is not allowed now"), "it is told");

    *signer.moods() = roundtrip_evm::testkit::signer::SignerMoods { meddles: true, ..Default::default() };
    drop(relay);
    let far = remote(signer.url(), keys[1].address()).open().await.unwrap();
    let alone = World::with(vec![keys[1].clone()]);
    let _relay = alone.relay(vec![far]).await;
    let _asking = alone.ask(&payloads);
    alone.mine_until("it is told", async || heard.text().contains("another value than was asked for")).await;
    assert_eq!(alone.chain.nonce(keys[1].address()), 0, "what it changed is not sent");
    assert!(alone.store.lanes().await.unwrap().iter().all(|lane| lane.status == LaneStatus::Active));
    signer.moods().meddles = false;
    alone.settled(&payloads).await;
}

#[tokio::test]
async fn a_remote_signer_that_is_silent_is_asked_again() {
    let key = dev_key(0);
    let world = World::with(vec![key.clone()]);
    let signer = RemoteSigner::serve(world.chain.chain_id(), vec![key.clone()]).await.unwrap();
    let far = remote(signer.url(), key.address()).open().await.unwrap();
    signer.moods().silent = 1;
    let _relay = world.relay(vec![far]).await;
    let payloads = payloads(1);
    let _asking = world.ask(&payloads);
    world.settled(&payloads).await;
    assert_eq!(signer.asked(), 2, "once in vain");
}
