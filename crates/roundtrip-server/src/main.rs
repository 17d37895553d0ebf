//! The command: reads its arguments, and says what came of it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use roundtrip_server::api::auth;
use roundtrip_server::config::{self, Loaded, LogConfig, LogFormat};
use roundtrip_server::plan::{Plan, Role};
use roundtrip_server::{check, init, run, telemetry};
use tracing_subscriber::EnvFilter;

/// Carries requests from blockchains and other sources to workers, and their answers back, durably.
#[derive(Parser)]
#[command(name = "roundtrip", version, about)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Writes a commented configuration to start from.
    Init {
        /// Where to.
        #[arg(default_value = "roundtrip.toml")]
        file: PathBuf,
    },
    /// Names everything that is wrong with a configuration, its keys, its nodes and its store.
    Check {
        #[command(flatten)]
        given: Given,
        /// Looks at the file alone: opens no key and calls nobody.
        #[arg(long)]
        offline: bool,
    },
    /// Runs it, until told to stop.
    Run {
        #[command(flatten)]
        given: Given,
        /// Only these parts of it; others run elsewhere, on the same store.
        #[arg(long, value_delimiter = ',', value_enum)]
        only: Vec<Role>,
    },
    /// Prints a token for the API, signed with the configuration's secret.
    Token {
        #[command(flatten)]
        given: Given,
        /// What its bearer may do.
        #[arg(long, value_delimiter = ',', value_enum, required = true)]
        roles: Vec<auth::Role>,
        /// Whose it is, as the log shows it.
        #[arg(long)]
        name: String,
        /// For how long it is good.
        #[arg(long, default_value = "1h")]
        length: humantime::Duration,
    },
    /// Prints the JSON Schema of the configuration, for editors.
    Schema,
    /// Prints the reference of the configuration, as Markdown.
    Reference,
    /// Prints the list of all metrics, as Markdown.
    Metrics,
}

#[derive(clap::Args)]
struct Given {
    /// The configuration.
    #[arg(short, long, default_value = "roundtrip.toml")]
    config: PathBuf,
}

impl Given {
    fn load(&self) -> anyhow::Result<(Loaded, &Path)> {
        let name = self.config.display().to_string();
        let text = std::fs::read_to_string(&self.config)
            .with_context(|| format!("{name} cannot be read; `roundtrip init` writes one to start from"))?;
        let loaded = config::load(&name, &text, std::env::vars())?;
        Ok((loaded, self.config.parent().unwrap_or(Path::new("."))))
    }
}

fn main() -> ExitCode {
    match act(Command::parse().action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(action: Action) -> anyhow::Result<()> {
    match action {
        Action::Init { file } => {
            init::write(&file)?;
            println!("{} is written: edit it, then `roundtrip check` and `roundtrip run`", file.display());
            Ok(())
        }
        Action::Check { given, offline } => {
            let (loaded, folder) = given.load()?;
            let plan = Plan::of(&loaded, folder)?;
            if !offline {
                runtime()?.block_on(check::online(&loaded, &plan))?;
            }
            println!("{}: {}", given.config.display(), check::summary(&loaded.config));
            Ok(())
        }
        Action::Run { given, only } => {
            let (loaded, folder) = given.load()?;
            let plan = Plan::of(&loaded, folder)?;
            log(&loaded.config.log)?;
            runtime()?.block_on(run::until_stopped(&loaded.config, &plan, &only))
        }
        Action::Token { given, roles, name, length } => {
            let (loaded, _) = given.load()?;
            let secret = loaded.config.api.auth.and_then(|auth| auth.secret);
            let secret = secret.context("api.auth.secret is not set: only who has the secret can sign")?;
            let secret = runtime()?.block_on(run::read_secret(&secret))?;
            auth::Keys::default().secret(secret.reveal().as_bytes())?;
            anyhow::ensure!(auth::is_name(&name), "a name has 1 to 128 bytes and no line breaks");
            println!("{}", auth::sign(secret.reveal().as_bytes(), &name, &roles, length.into())?);
            Ok(())
        }
        Action::Schema => {
            println!("{}", serde_json::to_string_pretty(&config::schema())?);
            Ok(())
        }
        Action::Reference => {
            print!("{}", config::reference());
            Ok(())
        }
        Action::Metrics => {
            print!("{}", telemetry::list::reference());
            Ok(())
        }
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// Starts the log, on standard error.
fn log(config: &LogConfig) -> anyhow::Result<()> {
    let level = EnvFilter::try_new(config.filter()).with_context(|| format!("log.level: {:?}", config.level))?;
    let lines = tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    match config.format {
        LogFormat::Human => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
