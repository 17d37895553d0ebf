//! Who signs: where an account's key is, or who else has it.
//!
//! ```text
//!   key, keystore, mnemonic ──▶ read once ──▶ signs in this process
//!   lost ──▶ nobody: an address alone
//!   remote ──▶ eth_signTransaction ──▶ is it what was asked for, by whom? ──▶ its signature
//! ```
//!
//! A configuration says where a secret is, and never holds it; no error, log line or `Debug`
//! shows it.
//!
//! Failure modes: a secret that cannot be read, or that is none, is an error at the start. A
//! remote signer that is silent is asked again; one that refuses, or signs something else, is
//! told in the log at every try, and its lane waits with its answers.

mod lost;
mod remote;
mod secret;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alloy::hex;
use alloy::network::TxSigner;
use alloy::primitives::{Address, Signature};
use alloy::signers::local::coins_bip39::English;
use alloy::signers::local::{LocalSignerError, MnemonicBuilder, PrivateKeySigner};
use serde::Deserialize;
use zeroize::Zeroizing;

use self::lost::Lost;
use self::remote::Remote;
pub use self::secret::{Environment, Secret, SecretSource};
use crate::rpc::{BadUrl, CallError, Rpc, without_secrets};

/// What signs a lane's transactions.
pub type LaneSigner = Arc<dyn TxSigner<Signature> + Send + Sync>;

/// Where an account's key is, or who signs for it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SignerSource {
    /// A private key, as 64 hexadecimal digits.
    Key(SecretSource),
    /// An encrypted key file, as geth and others write it.
    Keystore {
        /// The file.
        file: PathBuf,
        /// What it is encrypted with.
        password: SecretSource,
    },
    /// One of the accounts of an English phrase, at `m/44'/60'/0'/0/index`.
    Mnemonic {
        /// The phrase.
        phrase: SecretSource,
        /// Which account.
        #[serde(default)]
        index: u32,
    },
    /// Somebody else who signs, by `eth_signTransaction`, such as Web3Signer.
    Remote {
        /// Where.
        url: SignerUrl,
        /// For which account.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        address: Address,
    },
    /// Nobody: the key is lost, and this was its account's address. What is signed is sent until it is mined; nothing
    /// more is signed, and other lanes take what is new.
    Lost(#[cfg_attr(feature = "schema", schemars(with = "String"))] Address),
}

/// The address of a remote signer; only its host is shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct SignerUrl(String);

impl SignerUrl {
    /// This address.
    pub fn new(url: impl Into<String>) -> SignerUrl {
        SignerUrl(url.into())
    }
}

impl fmt::Debug for SignerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(&self.0))
    }
}

/// Why nobody signs. It holds no secret, and no part of one.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    /// A secret is not where it should be.
    #[error("no secret in {source_of}: {why}")]
    NoSecret {
        /// Where it should be.
        source_of: SecretSource,
        /// Why it could not be read.
        why: String,
    },
    /// What was read is no private key.
    #[error("{0} holds no private key: 64 hexadecimal digits are wanted, with or without 0x")]
    NotAKey(SecretSource),
    /// What was read is no phrase.
    #[error("{0} holds no English phrase of 12 to 24 words with a right checksum")]
    NotAPhrase(SecretSource),
    /// An index that no account has.
    #[error("there is no account {0} of a phrase: an index is below 2147483648")]
    NoSuchIndex(u32),
    /// The key file cannot be opened.
    #[error("{}: {why}", file.display())]
    Keystore {
        /// Which file.
        file: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// The remote signer has no usable address.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The remote signer has no such account.
    #[error("the signer at {signer} has no account {address}: give it the key, or correct the address")]
    UnknownAccount {
        /// Which signer.
        signer: String,
        /// Which account.
        address: Address,
    },
}

/// Accounts of a phrase have indexes below this.
const INDEX_END: u32 = 1 << 31;

impl SignerSource {
    /// Reads the key, or finds out whether the remote signer has the account. A remote signer
    /// that does not answer is taken for one that will.
    pub async fn open(&self) -> Result<LaneSigner, SignerError> {
        self.open_in(&|name| std::env::var(name).ok()).await
    }

    /// The same in another environment than the process's own.
    pub async fn open_in(&self, environment: &Environment<'_>) -> Result<LaneSigner, SignerError> {
        match self {
            SignerSource::Key(source) => Ok(Arc::new(key(source, &read(source, environment).await?)?)),
            SignerSource::Keystore { file, password } => {
                Ok(Arc::new(keystore(file, read(password, environment).await?).await?))
            }
            SignerSource::Mnemonic { phrase, index } => {
                Ok(Arc::new(account(phrase, &read(phrase, environment).await?, *index)?))
            }
            SignerSource::Remote { url, address } => Ok(Arc::new(remote(url, *address).await?)),
            SignerSource::Lost(address) => Ok(Arc::new(Lost(*address))),
        }
    }

    /// Takes the files that it names from this folder, unless their paths are whole ones.
    pub fn settle_in(&mut self, folder: &Path) {
        match self {
            SignerSource::Key(source) | SignerSource::Mnemonic { phrase: source, .. } => source.settle_in(folder),
            SignerSource::Keystore { file, password } => {
                *file = folder.join(&*file);
                password.settle_in(folder);
            }
            SignerSource::Remote { .. } | SignerSource::Lost(_) => {}
        }
    }

    /// Whether nobody signs.
    pub fn is_lost(&self) -> bool {
        matches!(self, SignerSource::Lost(_))
    }
}

async fn read(source: &SecretSource, environment: &Environment<'_>) -> Result<Secret, SignerError> {
    source.read(environment).await.map_err(|why| SignerError::NoSecret { source_of: source.clone(), why })
}

fn key(source: &SecretSource, secret: &Secret) -> Result<PrivateKeySigner, SignerError> {
    let mut bytes = Zeroizing::new([0; 32]);
    let read = hex::decode_to_slice(secret.reveal(), &mut *bytes).ok();
    read.and_then(|()| PrivateKeySigner::from_slice(&*bytes).ok()).ok_or_else(|| SignerError::NotAKey(source.clone()))
}

/// Keys are derived from passwords slowly, on purpose.
async fn keystore(file: &Path, password: Secret) -> Result<PrivateKeySigner, SignerError> {
    let path = file.to_owned();
    let opened = tokio::task::spawn_blocking(move || PrivateKeySigner::decrypt_keystore(path, password.reveal())).await;
    let why = match opened {
        Ok(Ok(signer)) => return Ok(signer),
        Ok(Err(LocalSignerError::EthKeystoreError(error))) => {
            let text = error.to_string();
            match () {
                () if text.contains("Mac Mismatch") => "the password is not that of this key file",
                () if file.exists() => "it is no key file that can be read",
                () => "there is no such file",
            }
        }
        Ok(Err(_)) => "it holds no private key",
        Err(_) => "it could not be decrypted",
    };
    Err(SignerError::Keystore { file: file.to_owned(), why })
}

/// Nothing of what the reader of phrases says is passed on: it may quote words.
fn account(source: &SecretSource, phrase: &Secret, index: u32) -> Result<PrivateKeySigner, SignerError> {
    if index >= INDEX_END {
        return Err(SignerError::NoSuchIndex(index));
    }
    let words = Zeroizing::new(phrase.reveal().split_whitespace().collect::<Vec<_>>().join(" "));
    let account = MnemonicBuilder::<English>::default().phrase(words.as_str()).index(index);
    account.and_then(|account| account.build()).map_err(|_| SignerError::NotAPhrase(source.clone()))
}

async fn remote(url: &SignerUrl, address: Address) -> Result<Remote, SignerError> {
    let remote = Remote::new(Rpc::http(&url.0)?, address);
    match remote.accounts().await {
        Ok(accounts) if !accounts.contains(&address) => {
            return Err(SignerError::UnknownAccount { signer: remote.name().to_owned(), address });
        }
        Ok(_) => {}
        Err(error @ (CallError::Refused { .. } | CallError::NoAnswer(_))) => {
            tracing::warn!(signer = remote.name(), %address, %error, "a remote signer does not tell its accounts");
        }
    }
    Ok(remote)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::address;
    use serde_json::json;

    use super::*;

    const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
    const ACCOUNT: Address = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");

    fn env(name: &str) -> SecretSource {
        SecretSource::Env(name.to_owned())
    }

    async fn opened(source: SignerSource, secret: &str) -> Result<Address, String> {
        let environment = |name: &str| (name == "SET").then(|| secret.to_owned());
        source.open_in(&environment).await.map(|signer| signer.address()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_key_is_read_however_it_is_written() {
        for text in [KEY.to_owned(), format!("0x{KEY}"), KEY.to_uppercase(), format!(" {KEY}\n")] {
            assert_eq!(opened(SignerSource::Key(env("SET")), &text).await, Ok(ACCOUNT), "{text}");
        }
        let short = &KEY[..63];
        for text in [short, "0", &"0".repeat(64), &"f".repeat(64), "zz"] {
            let error = opened(SignerSource::Key(env("SET")), text).await.unwrap_err();
            assert!(error.contains("holds no private key") && !error.contains(short), "{error}");
        }
        let error = opened(SignerSource::Key(env("UNSET")), KEY).await.unwrap_err();
        assert_eq!(error, "no secret in the environment variable UNSET: it is not set");
        let error = opened(SignerSource::Key(env("SET")), " \n").await.unwrap_err();
        assert!(error.contains("it is empty"), "{error}");
        let missing = SignerSource::Key(SecretSource::File("no/such/file".into()));
        assert!(opened(missing, "").await.unwrap_err().contains("no/such/file"));
    }

    #[tokio::test]
    async fn a_phrase_has_many_accounts() {
        let phrase = "test test test test test test test test test test test junk";
        let source = |index| SignerSource::Mnemonic { phrase: env("SET"), index };
        assert_eq!(opened(source(0), phrase).await, Ok(ACCOUNT));
        assert_eq!(opened(source(0), &phrase.replace(' ', "\n  ")).await, Ok(ACCOUNT));
        let ninth = address!("a0Ee7A142d267C1f36714E4a8F75612F20a79720");
        assert_eq!(opened(source(9), phrase).await, Ok(ninth));
        assert!(opened(source(u32::MAX), phrase).await.unwrap_err().contains("no account 4294967295"));
        for wrong in [
            "test test",
            "test test test test test test test test test test test sesame",
            phrase.trim_end_matches("junk"),
        ] {
            let error = opened(source(0), wrong).await.unwrap_err();
            assert!(error.contains("holds no English phrase"), "{error}");
            assert!(!error.contains("test") && !error.contains("sesame"), "{error}");
        }
    }

    #[test]
    fn a_configuration_names_where_secrets_are() {
        let address = ACCOUNT;
        let cases = [
            (json!({"key": {"env": "KEY"}}), SignerSource::Key(env("KEY"))),
            (json!({"key": {"file": "a/key"}}), SignerSource::Key(SecretSource::File("a/key".into()))),
            (
                json!({"keystore": {"file": "a.json", "password": {"env": "PASSWORD"}}}),
                SignerSource::Keystore { file: "a.json".into(), password: env("PASSWORD") },
            ),
            (json!({"mnemonic": {"phrase": {"env": "P"}}}), SignerSource::Mnemonic { phrase: env("P"), index: 0 }),
            (
                json!({"remote": {"url": "http://signer/KEY", "address": address}}),
                SignerSource::Remote { url: SignerUrl::new("http://signer/KEY"), address },
            ),
        ];
        for (text, source) in cases {
            assert_eq!(serde_json::from_value::<SignerSource>(text).unwrap(), source);
            assert!(!format!("{source:?}").contains("/KEY"), "{source:?}");
        }
        for wrong in
            [json!({"key": KEY}), json!({"mnemonic": {"phrase": {"env": "P"}, "indx": 1}}), json!({"ledger": {}})]
        {
            assert!(serde_json::from_value::<SignerSource>(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
