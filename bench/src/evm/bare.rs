//! The loop that somebody writes on alloy for speed alone: it signs, sends, and stores nothing.

use std::time::Instant;

use alloy::consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy::eips::eip2718::Encodable2718;
use alloy::primitives::{Address, Bytes, TxHash, TxKind, U64, U256};
use alloy::rpc::client::RpcClient;
use alloy::signers::SignerSync;
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use roundtrip_evm::testkit::account::{Fees, head, send_raw};
use roundtrip_evm::testkit::board::RequestBoard;
use tokio::task::JoinSet;

use super::site::{Cost, Meter, Site, answer, content};
use super::{CONFIRMATIONS, Failure, GAS, POLL};

/// Transactions in one call, as many as in one of ours.
const BATCH: usize = 100;
/// Calls of one account under way, as many as a lane of ours has.
const BATCHES_AT_ONCE: usize = 4;

/// The loop that somebody writes for speed alone.
pub(super) async fn send_all(site: &Site) -> Result<Cost, Failure> {
    let meter = Meter::start(site);
    let fees = head(&site.client).await?.fees();
    let mut accounts = JoinSet::new();
    for (at, signer) in site.signers.iter().enumerate() {
        let numbers: Vec<u64> = (0..site.count).skip(at).step_by(site.signers.len()).collect();
        let account = Account { client: site.client.clone(), signer: signer.clone(), fees };
        accounts.spawn(account.send_all(site.chain_id, site.board, numbers));
    }
    let mut accepted_at = Instant::now();
    while let Some(ended) = accounts.join_next().await {
        accepted_at = accepted_at.max(ended??);
    }
    Ok(meter.stop(accepted_at))
}

pub(super) struct Account {
    pub(super) client: RpcClient,
    pub(super) signer: PrivateKeySigner,
    pub(super) fees: Fees,
}

impl Account {
    /// Signs a batch while the last ones are on their way, then waits until all are deep; answers
    /// when the node had taken all.
    async fn send_all(self, chain_id: u64, board: Address, numbers: Vec<u64>) -> Result<Instant, Failure> {
        let mut sending: JoinSet<Result<(), Failure>> = JoinSet::new();
        let mut nonce = 0;
        for some in numbers.chunks(BATCH) {
            let mut raw: Vec<Bytes> = Vec::with_capacity(BATCH);
            for &n in some {
                raw.push(self.sign(chain_id, board, nonce, n)?);
                nonce += 1;
            }
            while sending.len() >= BATCHES_AT_ONCE {
                sending.join_next().await.ok_or("nothing is under way")???;
            }
            let client = self.client.clone();
            sending.spawn(async move {
                send_raw(&client, &raw).await?.into_iter().collect::<Result<Vec<TxHash>, _>>()?;
                Ok(())
            });
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        let accepted_at = Instant::now();
        while self.deep().await? < nonce {
            tokio::time::sleep(POLL).await;
        }
        Ok(accepted_at)
    }

    pub(super) fn sign(&self, chain_id: u64, board: Address, nonce: u64, n: u64) -> Result<Bytes, Failure> {
        let (id, content, answer) = (U256::from(n), content(n), answer(n));
        let transaction = TxEip1559 {
            chain_id,
            nonce,
            gas_limit: GAS,
            max_fee_per_gas: self.fees.max_fee,
            max_priority_fee_per_gas: self.fees.tip.ok_or("the node has no base fee")?,
            to: TxKind::Call(board),
            input: RequestBoard::respondCall { id, content, answer }.abi_encode().into(),
            ..TxEip1559::default()
        };
        let signature = self.signer.sign_hash_sync(&transaction.signature_hash())?;
        Ok(TxEnvelope::Eip1559(transaction.into_signed(signature)).encoded_2718().into())
    }

    /// How many of its transactions are confirmed.
    async fn deep(&self) -> Result<u64, Failure> {
        let head: U64 = self.client.request_noparams("eth_blockNumber").await?;
        let block = U64::from(head.to::<u64>().saturating_sub(CONFIRMATIONS - 1));
        let count: U64 = self.client.request("eth_getTransactionCount", (self.signer.address(), block)).await?;
        Ok(count.to())
    }
}
