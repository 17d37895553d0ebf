//! What nobody may see, and where it is read from.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use zeroize::Zeroizing;

/// A text that is shown nowhere and wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Keeps a text, less the white space around it.
    pub fn new(text: String) -> Secret {
        let text = Zeroizing::new(text);
        Secret(Zeroizing::new(text.trim().to_owned()))
    }

    /// The text itself, for whoever must have it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

/// Where a secret is; never the secret itself, so that a configuration can be shown.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// In the environment variable of this name.
    Env(String),
    /// In this file, alone.
    File(PathBuf),
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Env(name) => write!(f, "the environment variable {name}"),
            SecretSource::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// What a process finds in its environment, by name.
pub type Environment<'a> = dyn Fn(&str) -> Option<String> + Sync + 'a;

impl SecretSource {
    /// Takes a file from this folder, unless its path is a whole one.
    pub fn settle_in(&mut self, folder: &Path) {
        match self {
            SecretSource::Env(_) => {}
            SecretSource::File(path) => *path = folder.join(&*path),
        }
    }

    /// Reads it, or says why not.
    pub async fn read(&self, environment: &Environment<'_>) -> Result<Secret, String> {
        let text = match self {
            SecretSource::Env(name) => environment(name).ok_or_else(|| "it is not set".to_owned())?,
            SecretSource::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path));
                read.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?
            }
        };
        let secret = Secret::new(text);
        if secret.reveal().is_empty() { Err("it is empty".to_owned()) } else { Ok(secret) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new(" open sesame\n".to_owned());
        assert_eq!(secret.reveal(), "open sesame");
        for shown in [format!("{secret}"), format!("{secret:?}"), format!("{secret:#?}")] {
            assert!(!shown.contains("sesame"), "{shown}");
        }
    }
}
