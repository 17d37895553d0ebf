//! What would not work, found out without running anything: all of it at once.
//!
//! ```text
//!   what cannot be read ──▶ what makes no sense in the rest ──▶ what only the outside can tell of what is left
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use roundtrip::store::condition::{Condition, condition};
use roundtrip::store::{ReadExt, StoreError, look, without_password};

use crate::config::{AuthConfig, Config, Fault, Faults, Loaded, TlsConfig};
use crate::plan::Plan;
use crate::run::{open_headers, open_keys, open_tls, read_certificate, read_key, store_options};

/// How long a store has to answer.
const STORE_WITHIN: Duration = Duration::from_secs(10);

/// A configuration that makes sense.
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// What the first start will do to the store, if anything.
    pub store: Option<String>,
}

/// Everything that is wrong with a configuration that was read so far; `offline`, without a look outside.
pub async fn all(read: (Option<Loaded>, Faults), offline: bool) -> Result<Checked, Faults> {
    let (loaded, mut faults) = read;
    let Some(loaded) = loaded else { return Err(faults) };
    let (plan, senseless) = Plan::sketch(&loaded);
    faults.0.extend(senseless.0);
    let mut note = None;
    if !offline {
        let (told, of_store): (Vec<Fault>, _) = online(&loaded, &plan).await;
        note = of_store;
        // What is wrong at the same place follows from what was told.
        let along = |told: &Fault, path: &[String]| {
            !told.path.is_empty() && told.path.iter().zip(path).all(|(one, other)| one == other)
        };
        let known =
            |fault: &Fault| loaded.is_unread(&fault.path) || faults.0.iter().any(|told| along(told, &fault.path));
        let new: Vec<Fault> = told.into_iter().filter(|fault| !known(fault)).collect();
        faults.0.extend(new);
    }
    faults.in_order().unless_any(Checked { config: loaded.config, store: note })
}

/// Opens keys, calls nodes, and asks the store, of which there may be something to say besides.
async fn online(loaded: &Loaded, plan: &Plan) -> (Vec<Fault>, Option<String>) {
    let (store, mut faults) = tokio::join!(store(loaded), plan.probe(loaded));
    let note = store.unwrap_or_else(|fault| {
        faults.push(fault);
        None
    });
    let (api, traces) = (&loaded.config.api, &loaded.config.telemetry.traces);
    if let Some(auth) = &api.auth {
        let secret = ("secret", AuthConfig { public_key: None, ..auth.clone() });
        for (key, alone) in [secret, ("public_key", AuthConfig { secret: None, ..auth.clone() })] {
            if let Err(error) = open_keys(&alone).await {
                faults.push(loaded.fault(&["api", "auth", key], format!("{error:#}")));
            }
        }
    }
    for (name, source) in traces.iter().flat_map(|traces| &traces.headers) {
        if let Err(error) = open_headers(&BTreeMap::from([(name.clone(), source.clone())])).await {
            faults.push(loaded.fault(&["telemetry", "traces", "headers", name], format!("{error:#}")));
        }
    }
    for (key, error) in api.tls.iter().flat_map(wrong_with_tls) {
        faults.push(loaded.fault(&["api", "tls", key], format!("{error:#}")));
    }
    (faults, note)
}

/// What is wrong with a certificate, with its key, or else with both together.
fn wrong_with_tls(config: &TlsConfig) -> Vec<(&'static str, anyhow::Error)> {
    let certificate = read_certificate(&config.certificate).err().map(|error| ("certificate", error));
    let key = read_key(&config.key).err().map(|error| ("key", error));
    let each: Vec<_> = certificate.into_iter().chain(key).collect();
    match each.is_empty() {
        true => open_tls(config).err().map(|error| ("certificate", error)).into_iter().collect(),
        false => each,
    }
}

/// What the first start will do to the store, if anything; or what is wrong with it.
async fn store(loaded: &Loaded) -> Result<Option<String>, Fault> {
    let url = &loaded.config.store.url;
    let fault = |text: String| Err(loaded.fault(&["store", "url"], text));
    // The store has bounds of its own, of about as long: whichever ends first, what is told is the same.
    let late = || {
        let reason = format!("no answer within {} s", STORE_WITHIN.as_secs());
        StoreError::Unreachable { server: without_password(url), reason }.to_string()
    };
    // A look must not leave anything behind, nor change what others run on.
    match tokio::time::timeout(STORE_WITHIN, condition(url)).await {
        Ok(Ok(Condition::Ready)) => {}
        Ok(Ok(Condition::Missing { place })) => {
            return match loaded.config.store.file().map(can_be_made) {
                Some(Err(why)) => fault(why),
                Some(Ok(())) | None => Ok(Some(format!("there is no store at {place} yet: the first start makes it"))),
            };
        }
        Ok(Ok(Condition::Older { place, found, known })) => {
            return Ok(Some(format!(
                "the store at {place} has version {found}, and the first start brings it to {known}: stop older \
                 processes before"
            )));
        }
        Ok(Err(error)) => return fault(error.to_string()),
        Err(_) => return fault(late()),
    }
    if url == "memory:" {
        return Ok(None);
    }
    if let Some(file) = loaded.config.store.file().filter(|file| !is_writable(file)) {
        return fault(format!("{} or its folder cannot be written by this user: give both to it", file.display()));
    }
    let store = match look(url, store_options(Some(&loaded.config))) {
        Ok(store) => store,
        Err(error) => return fault(error.to_string()),
    };
    let answer = tokio::time::timeout(STORE_WITHIN, store.counts()).await;
    // What could not be read needs no orderly end.
    let _closed = tokio::time::timeout(STORE_WITHIN, store.close()).await;
    match answer {
        Ok(Ok(_)) => Ok(None),
        // A read changes nothing: that its answer was lost says only that nobody answered.
        Ok(Err(StoreError::Unknown)) => {
            fault("nobody answers there: is it running, and is the address right?".to_owned())
        }
        Ok(Err(error)) => fault(error.to_string()),
        Err(_) => fault(late()),
    }
}

/// Whether a file could be made where this one is to be: another one is, for a moment.
fn can_be_made(file: &Path) -> Result<(), String> {
    let folder = folder_of(file);
    if !folder.is_dir() {
        return Err(format!("there is no folder {}", folder.display()));
    }
    if file.is_dir() {
        return Err(format!("{} is a folder", file.display()));
    }
    let other = folder.join(format!(".roundtrip-check-{}", std::process::id()));
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&other);
    let tried = made.and_then(|_| std::fs::remove_file(&other));
    tried.map_err(|error| format!("no file can be made in {}: {error}", folder.display()))
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether this user may write a store's file, and beside it.
fn is_writable(file: &Path) -> bool {
    let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    writable(file) && writable(folder_of(file))
}

/// What a configuration that makes sense comes to, in a line.
pub fn summary(config: &Config) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    format!(
        "all is well: {}, {}, {}, {}",
        count(config.routes.len(), "route"),
        count(config.destinations.len(), "destination"),
        count(config.chains.len(), "chain"),
        count(config.lanes.len(), "lane"),
    )
}
