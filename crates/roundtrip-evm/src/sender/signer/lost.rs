//! An account whose key is gone: what was signed can still be mined, and nothing more is signed.

use alloy::consensus::SignableTransaction;
use alloy::network::TxSigner;
use alloy::primitives::{Address, Signature};
use async_trait::async_trait;

/// An account without a key.
pub(super) struct Lost(pub(super) Address);

#[async_trait]
impl TxSigner<Signature> for Lost {
    fn address(&self) -> Address {
        self.0
    }

    async fn sign_transaction(
        &self,
        _transaction: &mut dyn SignableTransaction<Signature>,
    ) -> alloy::signers::Result<Signature> {
        Err(alloy::signers::Error::message("the key is lost"))
    }
}
