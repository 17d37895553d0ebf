//! The store as a whole: brought up to date, checked, copied. Nobody else may use it meanwhile.

use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use roundtrip::store::archive::{self, CopyError, Kind, Progress};
use roundtrip::store::{ReadExt, StoreError, without_password};
use serde::Serialize;

use super::desk::{must_be_there, open_alone};
use super::given::Given;
use super::show;

/// What is done with a store.
#[derive(Subcommand)]
pub(super) enum StoreAction {
    /// Makes it if it is not there, and brings it up to what this version needs.
    Migrate(Place),
    /// Checks every invariant; the exit code is 1 if one does not hold.
    Verify(Place),
    /// Copies everything to another store, of any kind, and compares; one that was broken off goes on.
    Copy {
        #[command(flatten)]
        place: Place,
        /// Where to: a URL as in the configuration. It must be empty, or half copied from here.
        #[arg(long, value_name = "URL")]
        to: String,
    },
}

/// Which store.
#[derive(Args)]
pub(super) struct Place {
    #[command(flatten)]
    given: Given,
    /// The store, where the configuration does not say it.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// A number of records.
#[derive(Serialize)]
struct Records {
    kind: String,
    records: u64,
}

#[derive(Serialize)]
struct Migrated {
    store: String,
}

#[derive(Serialize)]
struct Verified {
    store: String,
    sound: bool,
    records: Vec<Records>,
    faults: Vec<String>,
    more: u64,
}

#[derive(Serialize)]
struct Copied {
    from: String,
    to: String,
    resumed: bool,
    records: Vec<Records>,
}

fn records(counts: &[(Kind, u64)]) -> Vec<Records> {
    counts.iter().map(|(kind, records)| Records { kind: kind.to_string(), records: *records }).collect()
}

impl Place {
    fn url(&self) -> anyhow::Result<String> {
        match &self.store {
            Some(url) => Ok(url.clone()),
            None => Ok(self.given.load()?.config.store.url),
        }
    }

    /// The URL of a store that is there.
    async fn existing(&self) -> anyhow::Result<String> {
        let url = self.url()?;
        if url == "memory:" {
            bail!("a store in memory goes with its instance, and cannot be looked at from here");
        }
        must_be_there(&url).await?;
        Ok(url)
    }
}

impl StoreAction {
    pub(super) async fn act(self) -> anyhow::Result<ExitCode> {
        match self {
            StoreAction::Migrate(place) => migrate(&place).await,
            StoreAction::Verify(place) => verify(&place).await,
            StoreAction::Copy { place, to } => copy(&place, &to).await,
        }
    }
}

async fn migrate(place: &Place) -> anyhow::Result<ExitCode> {
    let url = place.url()?;
    let store = open_alone(&url, None)?;
    let asked = store.counts().await;
    store.close().await.with_context(|| without_password(&url))?;
    asked.with_context(|| without_password(&url))?;
    let migrated = Migrated { store: without_password(&url) };
    show::print(place.json, &migrated, |done| format!("{} is as this version needs it\n", done.store))?;
    Ok(ExitCode::SUCCESS)
}

async fn verify(place: &Place) -> anyhow::Result<ExitCode> {
    let url = place.existing().await?;
    let bar = show::bar(None, "records checked:");
    let ticking = bar.clone();
    let verdict = archive::verify_with(url.as_str(), move |checked| ticking.set_position(checked)).await;
    bar.finish_and_clear();
    let verdict = verdict.map_err(|error| in_use(error, "verify")).with_context(|| without_password(&url))?;
    let found = Verified {
        store: without_password(&url),
        sound: verdict.is_sound(),
        records: records(&verdict.records),
        faults: verdict.faults.iter().map(ToString::to_string).collect(),
        more: verdict.more,
    };
    let what_to_do = "stop whoever uses it, keep a copy of it as it is, and restore a backup or copy what is sound";
    show::print(place.json, &found, |found| match found.sound {
        true => format!("{}: {verdict}\n", found.store),
        false => format!("{}: {verdict}\n{what_to_do}\n", found.store),
    })?;
    Ok(if found.sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn copy(place: &Place, to: &str) -> anyhow::Result<ExitCode> {
    let url = place.existing().await?;
    let bar = show::bar(None, "records copied:");
    let ticking = bar.clone();
    let on_progress = move |progress: Progress| {
        ticking.set_position(progress.written);
        ticking.set_message(format!("{} copied:", progress.kind));
        ControlFlow::Continue(())
    };
    let copied = archive::copy(url.as_str(), to, on_progress).await;
    bar.finish_and_clear();
    let copied = copied.map_err(|error| match error {
        CopyError::Source(error) => in_use(error, "copy").context(format!("the source {}", without_password(&url))),
        CopyError::Destination(error) => {
            in_use(error, "copy").context(format!("the destination {}", without_password(to)))
        }
        error => error.into(),
    })?;
    let done = Copied {
        from: without_password(&url),
        to: without_password(to),
        resumed: copied.resumed,
        records: records(&copied.records),
    };
    show::print(place.json, &done, |done| {
        format!(
            "{copied}\nstart only one of the two, or everything is done twice: to move, set store.url to {} and never start {} again; as a backup, keep it\n",
            done.to, done.from
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Says what to do about a store that somebody uses.
fn in_use(error: StoreError, what: &str) -> anyhow::Error {
    match error {
        StoreError::Owned { path, owner } => {
            anyhow::anyhow!("{path} is in use by process {owner}: stop that instance, then {what} again")
        }
        error => error.into(),
    }
}
