//! The command: what a person does from a terminal.
//!
//! ```text
//!   arguments ──▶ a noun and what is done to it ──▶ Desk ──▶ an instance that runs, over its API
//!                                                    └─────▶ its store, while none runs
//!                                                             └──▶ table, or JSON
//! ```
//!
//! One file for each noun. Failure modes: whatever fails is told in one line on standard error, with
//! what it happened to and what to do, and the exit code is 1; `doctor` has codes of its own.

mod dead;
mod desk;
mod doctor;
mod given;
mod lanes;
mod listeners;
mod reference;
mod requests;
mod routes;
mod show;
mod store;
mod token;
mod top;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::config::{self, LogConfig, LogFormat};
use crate::plan::{Plan, Role};
use crate::{check, init, run, telemetry};
use given::{Given, Reach};

/// Carries requests from blockchains and other sources to workers, and their answers back, durably.
#[derive(Parser)]
#[command(name = "roundtrip", version)]
pub struct Command {
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
    /// Requests: looks at them, submits, retries and cancels them.
    #[command(subcommand)]
    Requests(requests::Requests),
    /// Dead letters: what they died of, and many of them retried or dropped.
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Lanes: the accounts that send.
    #[command(subcommand)]
    Lanes(lanes::Lanes),
    /// Routes: how full they are, and whether they hand out work.
    #[command(subcommand)]
    Routes(routes::Routes),
    /// How far each listener is, and whether it gets on.
    Listeners {
        #[command(flatten)]
        reach: Reach,
    },
    /// Tokens for the API.
    #[command(subcommand)]
    Token(token::Token),
    /// The store as a whole.
    #[command(subcommand)]
    Store(store::StoreAction),
    /// Says whether all is well, and what to do about what is not. The exit code is 0 if it is, 3 if
    /// somebody should look, 4 if something is bad: also if the instance says nothing, of which 5 seconds are enough.
    Doctor {
        #[command(flatten)]
        reach: Reach,
    },
    /// Shows routes, lanes and listeners as they change; q ends it.
    Top {
        /// Shows it once, and ends.
        #[arg(long)]
        once: bool,
        /// How often it looks.
        #[arg(long, value_name = "LENGTH", default_value = "1s")]
        every: humantime::Duration,
        #[command(flatten)]
        reach: Reach,
    },
    /// Prints what makes a shell complete this command.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Prints the JSON Schema of the configuration, for editors.
    Schema,
    /// Prints the list of all metrics, as Markdown.
    Metrics,
    /// Prints the reference of the configuration, as Markdown; with `--cli`, that of this command.
    Reference {
        /// Of this command.
        #[arg(long)]
        cli: bool,
    },
}

/// Reads the arguments, does what they say, and says what came of it.
pub fn main() -> ExitCode {
    match act(Command::parse().action) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(action: Action) -> anyhow::Result<ExitCode> {
    match action {
        Action::Init { file } => {
            init::write(&file)?;
            show::say(&format!(
                "{} is written: edit it, then `roundtrip check` and `roundtrip run`\n",
                file.display()
            ))?;
        }
        Action::Check { given, offline } => {
            let checked = runtime()?.block_on(check::all(given.read()?, offline))?;
            let store = checked.store.map(|note| format!("{note}\n")).unwrap_or_default();
            show::say(&format!("{}: {}\n{store}", given.file().display(), check::summary(&checked.config)))?;
        }
        Action::Run { given, only } => {
            let loaded = given.load()?;
            let plan = Plan::of(&loaded)?;
            log(&loaded.config.log)?;
            runtime()?.block_on(run::until_stopped(&loaded.config, &plan, &only))?;
        }
        Action::Requests(action) => runtime()?.block_on(action.act())?,
        Action::Dead(action) => runtime()?.block_on(action.act())?,
        Action::Lanes(action) => runtime()?.block_on(action.act())?,
        Action::Routes(action) => runtime()?.block_on(action.act())?,
        Action::Listeners { reach } => runtime()?.block_on(listeners::list(&reach))?,
        Action::Token(action) => runtime()?.block_on(action.act())?,
        Action::Store(action) => return runtime()?.block_on(action.act()),
        Action::Doctor { reach } => return runtime()?.block_on(doctor::examine(&reach)),
        Action::Top { once, every, reach } => runtime()?.block_on(top::show(&reach, once, *every))?,
        Action::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Command::command(), "roundtrip", &mut script);
            show::say(&String::from_utf8_lossy(&script))?;
        }
        Action::Schema => show::say(&format!("{}\n", serde_json::to_string_pretty(&config::schema())?))?,
        Action::Metrics => show::say(&telemetry::list::reference())?,
        Action::Reference { cli: false } => show::say(&config::reference())?,
        Action::Reference { cli: true } => show::say(&reference::of(Command::command()))?,
    }
    Ok(ExitCode::SUCCESS)
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
