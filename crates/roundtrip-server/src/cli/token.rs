//! Tokens for the API.

use anyhow::{Context, ensure};
use clap::Subcommand;

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
        #[arg(long, default_value = "operator")]
        name: String,
        /// For how long it is good.
        #[arg(long, value_name = "LENGTH", default_value = "1h")]
        ttl: humantime::Duration,
        /// Prints it as a link to the dashboard, which logs in whoever opens it.
        #[arg(long)]
        link: bool,
    },
}

impl Token {
    pub(super) async fn act(self) -> anyhow::Result<()> {
        let Token::Create { given, role, name, ttl, link } = self;
        let (loaded, _) = given.load()?;
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
        show::say(&format!("{}\n", if link { auth::link(&address, &token) } else { token }))?;
        Ok(())
    }
}
