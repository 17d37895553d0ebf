//! A remote signer that is served over HTTP in this process: `eth_accounts` and
//! `eth_signTransaction` as Web3Signer answers them, and its bad days.

use std::future::IntoFuture;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy::consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy::eips::eip2718::Encodable2718;
use alloy::primitives::{Address, Bytes, TxKind, U64, U128, U256};
use alloy::signers::SignerSync;
use alloy::signers::local::PrivateKeySigner;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::routing::post;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How it is; by default, well.
#[derive(Clone, Debug, Default)]
pub struct SignerMoods {
    /// So many of the next calls for a signature get no answer.
    pub silent: usize,
    /// It refuses every call for a signature with these words.
    pub refuses: Option<String>,
    /// It signs another value than it was asked to.
    pub meddles: bool,
}

/// A remote signer; dropped, it is gone.
pub struct RemoteSigner {
    url: String,
    state: Arc<Signing>,
    _server: JoinSet<io::Result<()>>,
}

struct Signing {
    chain_id: u64,
    keys: Vec<PrivateKeySigner>,
    moods: Mutex<SignerMoods>,
    asked: Mutex<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wish {
    from: Address,
    to: Address,
    gas: U64,
    nonce: U64,
    value: U256,
    data: Bytes,
    max_fee_per_gas: U128,
    max_priority_fee_per_gas: U128,
}

impl RemoteSigner {
    /// Signs for these keys, on this chain.
    pub async fn serve(chain_id: u64, keys: Vec<PrivateKeySigner>) -> io::Result<RemoteSigner> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let state = Arc::new(Signing { chain_id, keys, moods: Mutex::default(), asked: Mutex::default() });
        let router = Router::new().route("/", post(answer)).with_state(state.clone());
        let mut server = JoinSet::new();
        server.spawn(axum::serve(listener, router).into_future());
        Ok(RemoteSigner { url, state, _server: server })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its moods, to be changed.
    pub fn moods(&self) -> MutexGuard<'_, SignerMoods> {
        self.state.moods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often it was asked for a signature.
    pub fn asked(&self) -> usize {
        *self.state.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn answer(
    State(signing): State<Arc<Signing>>,
    body: String,
) -> Result<([(header::HeaderName, &'static str); 1], String), StatusCode> {
    let request: Value = serde_json::from_str(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let result = match request["method"].as_str() {
        Some("eth_accounts") => Ok(json!(signing.keys.iter().map(PrivateKeySigner::address).collect::<Vec<_>>())),
        Some("eth_signTransaction") => {
            if signing.is_silent() {
                std::future::pending::<()>().await;
            }
            signing.sign(&request["params"][0])
        }
        _ => Err("Method not found".to_owned()),
    };
    let mut answer = json!({"jsonrpc": "2.0", "id": request["id"]});
    match result {
        Ok(result) => answer["result"] = result,
        Err(message) => answer["error"] = json!({"code": -32000, "message": message}),
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], answer.to_string()))
}

impl Signing {
    /// Whether this call gets no answer.
    fn is_silent(&self) -> bool {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let mut moods = self.moods.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = moods.silent > 0;
        moods.silent = moods.silent.saturating_sub(1);
        silent
    }

    fn sign(&self, wish: &Value) -> Result<Value, String> {
        let moods = self.moods.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(words) = moods.refuses {
            return Err(words);
        }
        let wish: Wish = serde_json::from_value(wish.clone()).map_err(|_| "Invalid params".to_owned())?;
        let key = self.keys.iter().find(|key| key.address() == wish.from);
        let key = key.ok_or("From address does not match an available account")?;
        let transaction = TxEip1559 {
            chain_id: self.chain_id,
            nonce: wish.nonce.to(),
            gas_limit: wish.gas.to(),
            max_fee_per_gas: wish.max_fee_per_gas.to(),
            max_priority_fee_per_gas: wish.max_priority_fee_per_gas.to(),
            to: TxKind::Call(wish.to),
            value: if moods.meddles { wish.value + U256::ONE } else { wish.value },
            input: wish.data,
            ..TxEip1559::default()
        };
        let signature = key.sign_hash_sync(&transaction.signature_hash()).map_err(|error| error.to_string())?;
        let bytes: Bytes = TxEnvelope::from(transaction.into_signed(signature)).encoded_2718().into();
        Ok(json!(bytes))
    }
}
