//! The development chain as an alloy provider sees it, in process and over HTTP.

use alloy::consensus::TxEnvelope;
use alloy::consensus::proofs::{calculate_receipt_root, calculate_transaction_root};
use alloy::eips::{BlockId, Encodable2718};
use alloy::network::{EthereumWallet, NetworkTransactionBuilder, TransactionBuilder};
use alloy::primitives::{Address, B256, Bytes, TxHash, U256, keccak256};
use alloy::providers::{DynProvider, Provider, ProviderBuilder};
use alloy::rpc::client::RpcClient;
use alloy::rpc::types::{Filter, Log, TransactionRequest};
use alloy::sol_types::{SolCall, SolError, SolEvent, SolValue};
use alloy::transports::RpcError;
use roundtrip_evm::Rpc;
use roundtrip_evm::testkit::account::dev_key;
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::devchain::{BaseFee, DevChain, DevChainOptions, Faults, GWEI, Reorg};

const GAS: u64 = 300_000;

fn chain(seed: u64) -> DevChain {
    DevChain::new(DevChainOptions { seed, base_fee: BaseFee::Fixed(GWEI), ..DevChainOptions::default() })
}

fn provider(client: RpcClient) -> DynProvider {
    DynProvider::new(ProviderBuilder::new().disable_recommended_fillers().connect_client(client))
}

fn request(board: Address, payload: &str) -> TransactionRequest {
    let payload = Bytes::copy_from_slice(payload.as_bytes());
    TransactionRequest::default().to(board).with_input(RequestBoard::requestCall { payload }.abi_encode())
}

fn respond(board: Address, id: u64, payload: &str) -> TransactionRequest {
    let answer = Bytes::from_static(b"answer");
    let call = RequestBoard::respondCall { id: U256::from(id), content: keccak256(payload), answer };
    TransactionRequest::default().to(board).with_input(call.abi_encode())
}

/// Signs as a development account, at this fee in gwei.
async fn signed(account: usize, nonce: u64, gwei: u64, transaction: TransactionRequest) -> Vec<u8> {
    let wallet = EthereumWallet::from(dev_key(account));
    let transaction = transaction
        .with_chain_id(31_337)
        .with_nonce(nonce)
        .with_gas_limit(GAS)
        .with_max_fee_per_gas(u128::from(gwei * GWEI))
        .with_max_priority_fee_per_gas(u128::from(gwei * GWEI / 2));
    transaction.build(&wallet).await.unwrap().encoded_2718()
}

async fn requested(provider: &DynProvider, board: Address) -> Vec<Log> {
    let filter = Filter::new().address(board).event_signature(RequestBoard::Requested::SIGNATURE_HASH).from_block(0);
    provider.get_logs(&filter).await.unwrap()
}

fn refusal<T: std::fmt::Debug>(result: Result<T, alloy::transports::TransportError>) -> (i64, String, Option<Bytes>) {
    match result.unwrap_err() {
        RpcError::ErrorResp(error) => {
            let data = error.try_data_as::<Bytes>().map(Result::unwrap);
            (error.code, error.message.to_string(), data)
        }
        other => panic!("an answer of the node: {other}"),
    }
}

/// Request, log, answer, and a second answer that the contract refuses.
async fn round_trip(chain: &DevChain, provider: &DynProvider) {
    let board = chain.deploy_board(&[dev_key(1).address()]);
    let asked = provider.send_raw_transaction(&signed(0, 0, 4, request(board, "what?")).await).await.unwrap();
    chain.mine();
    let logs = requested(provider, board).await;
    assert_eq!(logs[0].transaction_hash, Some(*asked.tx_hash()));
    let event = logs[0].log_decode::<RequestBoard::Requested>().unwrap();
    assert_eq!((event.inner.id, event.inner.payload.as_ref()), (U256::ZERO, b"what?".as_slice()));
    assert_eq!(logs[0].block_hash, Some(B256::from(chain.head().hash)));

    let answer = respond(board, 0, "what?").from(dev_key(1).address());
    let gas = provider.estimate_gas(answer.clone()).await.unwrap();
    assert!((45_000..90_000).contains(&gas), "{gas}");
    let first = provider.send_raw_transaction(&signed(1, 0, 4, answer.clone()).await).await.unwrap();
    let second = provider.send_raw_transaction(&signed(1, 1, 4, answer.clone()).await).await.unwrap();
    chain.mine();
    let (first, second) = (*first.tx_hash(), *second.tx_hash());
    let receipt = provider.get_transaction_receipt(first).await.unwrap().unwrap();
    assert!(receipt.status() && receipt.decoded_log::<RequestBoard::Responded>().is_some());
    assert_eq!(receipt.gas_used, gas);
    let receipt = provider.get_transaction_receipt(second).await.unwrap().unwrap();
    assert!(!receipt.status() && receipt.logs().is_empty());

    let reason = Bytes::from(RequestBoard::AlreadyResponded { id: U256::ZERO }.abi_encode());
    let refused = (3, "execution reverted".to_owned(), Some(reason));
    assert_eq!(refusal(provider.call(answer.clone()).await), refused);
    assert_eq!(refusal(provider.estimate_gas(answer).await), refused);
}

#[tokio::test(start_paused = true)]
async fn a_round_trip_in_process() {
    let chain = chain(1);
    round_trip(&chain, &provider(chain.client())).await;
}

#[tokio::test]
async fn a_round_trip_over_http() {
    let chain = chain(1);
    let served = chain.serve_http().await.unwrap();
    let provider = provider(Rpc::http(&served.url()).unwrap().client());
    round_trip(&chain, &provider).await;

    // The answer is lost, the transaction is not.
    chain.lose_next("eth_sendRawTransaction", 1);
    let raw = signed(2, 0, 4, TransactionRequest::default().to(Address::ZERO)).await;
    let lost = provider.send_raw_transaction(&raw).await.unwrap_err();
    assert!(lost.as_error_resp().is_none(), "{lost}");
    assert_eq!(chain.pool().len(), 1);
    chain.set_faults(Faults { fail: 1000, ..Faults::default() });
    assert!(provider.get_block_number().await.unwrap_err().to_string().contains("503"));
    drop(provider);
    served.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn everything_that_alloy_fills_in_is_answered() {
    let chain = DevChain::default();
    let wallet = EthereumWallet::from(dev_key(0));
    let provider = ProviderBuilder::new().wallet(wallet).connect_client(chain.client());
    let pending = provider.send_transaction(TransactionRequest::default().to(Address::ZERO).value(U256::from(5)));
    let pending = pending.await.unwrap();
    chain.mine();
    let receipt = pending.get_receipt().await.unwrap();
    assert_eq!((receipt.status(), receipt.gas_used), (true, 21_000));
    let block = provider.get_block(BlockId::latest()).full().await.unwrap().unwrap();
    assert_eq!(block.header.hash, block.header.inner.hash_slow());
    let sent: Vec<TxEnvelope> = block.transactions.clone().into_transactions().map(|sent| sent.into_inner()).collect();
    assert_eq!(calculate_transaction_root(&sent), block.header.transactions_root);
    let receipts = provider.get_block_receipts(BlockId::latest()).await.unwrap().unwrap();
    assert_eq!(receipts, [receipt]);
    let receipts: Vec<_> = receipts.into_iter().map(|receipt| receipt.into_primitives_receipt().inner).collect();
    assert_eq!(calculate_receipt_root(&receipts), block.header.receipts_root);
}

#[tokio::test(start_paused = true)]
async fn a_contract_is_created_by_a_transaction() {
    let chain = chain(1);
    let provider = provider(chain.client());
    let artifact: serde_json::Value = serde_json::from_str(include_str!("../../contracts/RequestBoard.json")).unwrap();
    let code: Bytes = artifact["bytecode"].as_str().unwrap().parse().unwrap();
    let arguments = (vec![dev_key(1).address()],).abi_encode_params();
    let creation = TransactionRequest::default().with_deploy_code([code.as_ref(), &arguments].concat());
    let creation = creation.with_gas_limit(3_000_000).with_chain_id(31_337).with_nonce(0);
    let creation = creation.with_max_fee_per_gas(u128::from(4 * GWEI)).with_max_priority_fee_per_gas(1);
    let raw = creation.build(&EthereumWallet::from(dev_key(0))).await.unwrap().encoded_2718();
    let sent = *provider.send_raw_transaction(&raw).await.unwrap().tx_hash();
    chain.mine();
    let receipt = provider.get_transaction_receipt(sent).await.unwrap().unwrap();
    let board = receipt.contract_address.unwrap();
    let deployed: Bytes = artifact["deployedBytecode"].as_str().unwrap().parse().unwrap();
    assert_eq!((receipt.status(), provider.get_code_at(board).await.unwrap()), (true, deployed));

    chain.send(&signed(2, 0, 4, request(board, "a")).await).unwrap();
    chain.mine();
    assert_eq!(requested(&provider, board).await.len(), 1);
    chain.reorg(2, Reorg::Dropped);
    assert!(provider.get_code_at(board).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reorg_moves_a_log() {
    let chain = chain(1);
    let provider = provider(chain.client());
    let board = chain.deploy_board(&[]);
    let sent = chain.send(&signed(0, 0, 4, request(board, "a")).await).unwrap();
    chain.mine();
    let before = requested(&provider, board).await.remove(0);
    chain.reorg(1, Reorg::ToPool);
    assert!(requested(&provider, board).await.is_empty());
    assert!(provider.get_transaction_receipt(sent).await.unwrap().is_none());
    assert_eq!(provider.get_transaction_by_hash(sent).await.unwrap().unwrap().block_number, None);
    let account = dev_key(0).address();
    assert_eq!(provider.get_transaction_count(account).await.unwrap(), 0);
    assert_eq!(provider.get_transaction_count(account).pending().await.unwrap(), 1);
    chain.mine();
    let after = requested(&provider, board).await.remove(0);
    assert_eq!((before.transaction_hash, &before.inner), (after.transaction_hash, &after.inner));
    assert_eq!((before.block_number, after.block_number), (Some(1), Some(3)));
    // The block that was taken away can still be read by its hash, as on a node.
    let old = before.block_hash.unwrap();
    assert!(provider.get_block(BlockId::hash(old)).await.unwrap().is_some());
    assert_eq!(provider.get_logs(&Filter::new().at_block_hash(old)).await.unwrap(), [before]);
}

#[tokio::test(start_paused = true)]
async fn a_replacement_must_pay_more_and_is_then_the_only_one() {
    let chain = chain(1);
    let provider = provider(chain.client());
    let board = chain.deploy_board(&[]);
    let account = dev_key(0).address();
    let node = &provider;
    let send = |raw: Vec<u8>| async move { node.send_raw_transaction(&raw).await.map(|pending| *pending.tx_hash()) };
    chain.set_base_fee(15 * GWEI);
    let first = send(signed(0, 0, 10, request(board, "a")).await).await.unwrap();
    chain.mine();
    assert!(provider.get_transaction_receipt(first).await.unwrap().is_none(), "it is below the base fee");
    let near = send(signed(0, 0, 10, request(board, "b")).await).await;
    assert_eq!(refusal(near).1, "replacement transaction underpriced");
    let cancel = TransactionRequest::default().to(account);
    let second = send(signed(0, 0, 20, cancel).await).await.unwrap();
    assert!(provider.get_transaction_by_hash(first).await.unwrap().is_none());
    chain.mine();
    assert!(provider.get_transaction_receipt(second).await.unwrap().unwrap().status());
    let late = send(signed(0, 0, 40, request(board, "a")).await).await;
    assert_eq!(refusal(late), (-32_000, "nonce too low: next nonce 1, tx nonce 0".into(), None));
}

#[tokio::test(start_paused = true)]
async fn what_tests_do_to_a_chain() {
    let chain = DevChain::new(DevChainOptions { finality: 3, ..DevChainOptions::default() });
    let account = dev_key(0).address();
    let transfer = |nonce| signed(0, nonce, 4, TransactionRequest::default().to(Address::ZERO));
    let first = chain.send(&transfer(0).await).unwrap();
    chain.send(&transfer(1).await).unwrap();
    assert!(chain.drop_pending(first) && !chain.drop_pending(first));
    chain.mine();
    assert_eq!((chain.nonce(account), chain.pool().len()), (0, 1), "it waits above the gap");
    assert_eq!((chain.drop_all_pending(), chain.pool().len()), (1, 0));
    chain.set_balance(account, U256::from(7));
    assert_eq!(chain.balance(account), U256::from(7));
    chain.send(&transfer(0).await).unwrap_err();
    let mined = [(); 4].map(|()| chain.mine_empty());
    assert_eq!((chain.head(), chain.finalized()), (mined[3], 2));
    assert_eq!(chain.reorg(4, Reorg::Dropped).removed.len(), 4, "also below what was final");
    assert_eq!(chain.balance(account), U256::from(7));
}

/// A stormy run; answers every block's hash and every outcome of a call.
async fn storm(seed: u64) -> (Vec<B256>, Vec<String>) {
    let chain = chain(seed);
    let board = chain.deploy_board(&[]);
    let provider = provider(chain.client());
    chain.set_faults(Faults {
        delay_ms: 0,
        blind: 0,
        fail: 50,
        lose_answer: 50,
        lag: 100,
        lag_blocks: 3,
        drop: 20,
        evict: 10,
        spike: 50,
        spike_times: 9,
        spike_blocks: 3,
        reorg: 200,
        reorg_blocks: 4,
    });
    let mut heard = Vec::new();
    for round in 0..60u64 {
        for account in 0..3 {
            let nonce = provider.get_transaction_count(dev_key(account).address()).await;
            heard.push(format!("{nonce:?}"));
            let raw = signed(account, nonce.unwrap_or(round), 4, request(board, "again")).await;
            let sent: Result<TxHash, _> = provider.send_raw_transaction(&raw).await.map(|pending| *pending.tx_hash());
            heard.push(sent.map_or_else(|error| error.to_string(), |hash| hash.to_string()));
        }
        chain.mine();
    }
    (chain.blocks().iter().map(|block| block.hash).collect(), heard)
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_is_the_same_history() {
    let (blocks, heard) = storm(7).await;
    assert_eq!((blocks.clone(), heard.clone()), storm(7).await);
    let (others, _) = storm(8).await;
    assert!(blocks.iter().all(|hash| !others.contains(hash)));
    assert!(heard.iter().any(|words| words.contains("before the answer came")));
    assert!(heard.iter().any(|words| words.contains("was not carried out")));
}
