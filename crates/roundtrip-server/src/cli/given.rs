//! What commands are given to find the configuration, and whoever they speak to.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use crate::config::{self, Loaded};

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

    /// What it says, and the folder in which files that it names are.
    pub(super) fn load(&self) -> anyhow::Result<(Loaded, PathBuf)> {
        load(&self.config)
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
    /// The store itself, where no instance runs: a URL as in the configuration.
    #[arg(long, value_name = "URL")]
    pub(super) store: Option<String>,
    /// JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

impl Reach {
    /// The configuration; nothing, if none was named and there is none.
    pub(super) fn load(&self) -> anyhow::Result<Option<(Loaded, PathBuf)>> {
        match &self.config {
            Some(file) => load(file).map(Some),
            None if Path::new(CONFIG).exists() => load(Path::new(CONFIG)).map(Some),
            None => Ok(None),
        }
    }
}

/// Reads a configuration.
pub(super) fn load(file: &Path) -> anyhow::Result<(Loaded, PathBuf)> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{name} cannot be read; `roundtrip init` writes one to start from"))?;
    let loaded = config::load(&name, &text, std::env::vars())?;
    Ok((loaded, file.parent().unwrap_or(Path::new(".")).to_owned()))
}
