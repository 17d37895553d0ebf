//! What commands are given to find the configuration, and whoever they speak to.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use crate::config::{self, Faults, Loaded};

/// Where the configuration is unless it is said.
const CONFIG: &str = "roundtrip.toml";

/// Which configuration.
#[derive(Args)]
pub(super) struct Given {
    /// The configuration.
    #[arg(short, long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
}

impl Given {
    /// The file.
    pub(super) fn file(&self) -> &Path {
        &self.config
    }

    /// What it says.
    pub(super) fn load(&self) -> anyhow::Result<Loaded> {
        load(&self.config)
    }

    /// As much of it as can be read, and what is wrong with the rest.
    pub(super) fn read(&self) -> anyhow::Result<(Option<Loaded>, Faults)> {
        let (name, text) = text_of(&self.config)?;
        Ok(config::read(&name, &text, std::env::vars()))
    }
}

/// Whoever a command speaks to: an instance that runs, or the store while none runs.
#[derive(Args)]
pub(super) struct Reach {
    /// The configuration, which says where the instance listens, or where its store is; roundtrip.toml if nothing is said.
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The instance, such as https://roundtrip.example:8080.
    #[arg(long, env = "ROUNDTRIP_URL", conflicts_with = "store")]
    pub(super) url: Option<String>,
    /// The token for it; without one, the configuration's secret signs one for this call.
    #[arg(long, env = "ROUNDTRIP_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,
    /// The file with the certificates, as PEM, of whoever vouches for the instance, where no public authority does.
    #[arg(long, value_name = "FILE", env = "ROUNDTRIP_CA")]
    pub(super) ca: Option<PathBuf>,
    /// The store itself, where no instance runs: a URL as in the configuration.
    #[arg(long, value_name = "URL")]
    pub(super) store: Option<String>,
    /// JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

impl Reach {
    /// The configuration; nothing, if none was named and there is none.
    pub(super) fn load(&self) -> anyhow::Result<Option<Loaded>> {
        match &self.config {
            Some(file) => load(file).map(Some),
            None if Path::new(CONFIG).exists() => load(Path::new(CONFIG)).map(Some),
            None => Ok(None),
        }
    }
}

/// Reads a configuration.
pub(super) fn load(file: &Path) -> anyhow::Result<Loaded> {
    let (name, text) = text_of(file)?;
    Ok(config::load(&name, &text, std::env::vars())?)
}

/// A file's name, and what is in it.
fn text_of(file: &Path) -> anyhow::Result<(String, String)> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{name} cannot be read; `roundtrip init` writes one to start from"))?;
    Ok((name, text))
}
