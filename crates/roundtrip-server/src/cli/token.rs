//! Tokens for the API.

use anyhow::{Context, ensure};
use clap::Subcommand;
use serde::Serialize;

use super::given::Given;
use super::show;
use crate::api::auth;
use crate::run::read_secret;

/// What is done with tokens.
#[derive(Subcommand)]
pub(super) enum Token {
    /// Prints a token, signed with the configuration's secret.
    Create {
        #[command(flatten)]
        given: Given,
        /// What its bearer may do; several with commas.
        #[arg(long, value_delimiter = ',', value_enum, required = true)]
        role: Vec<auth::Role>,
        /// Whose it is, as the log shows it.
        #[arg(long, env = "USER", default_value = "unnamed")]
        name: String,
        /// For how long it is good.
        #[arg(long, value_name = "LENGTH", default_value = "1h")]
        ttl: humantime::Duration,
        /// Prints it as a link to the dashboard, which logs in whoever opens it.
        #[arg(long)]
        link: bool,
        /// JSON instead of the token alone.
        #[arg(long)]
        json: bool,
    },
}

/// A token, and what it is good for.
#[derive(Serialize)]
struct Created {
    token: String,
    roles: Vec<auth::Role>,
    name: String,
    /// When it ends, in milliseconds since 1970.
    until_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
}

impl Token {
    pub(super) async fn act(self) -> anyhow::Result<()> {
        let Token::Create { given, role, name, ttl, link, json } = self;
        let loaded = given.load()?;
        let address = loaded.config.api.address();
        let secret = loaded.config.api.auth.and_then(|auth| auth.secret);
        let secret = secret.with_context(|| {
            format!(
                "{} names no api.auth.secret, and only who has one can sign: add it, or ask whoever holds the private key",
                given.file().display()
            )
        })?;
        let secret = read_secret(&secret).await?;
        auth::Keys::default().secret(secret.reveal().as_bytes())?;
        ensure!(auth::is_name(&name), "{name:?} is no name: 1 to 128 bytes and no line breaks");
        ensure!(!ttl.is_zero(), "a token of no length is good for nothing: say --ttl 1h");
        let token = auth::sign(secret.reveal().as_bytes(), &name, &role, ttl.into())?;
        let link = link.then(|| auth::link(&address, &token));
        let until_ms = show::now_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let created = Created { token, roles: role, name, until_ms, link };
        show::print(json, &created, |created| format!("{}\n", created.link.as_ref().unwrap_or(&created.token)))
    }
}
