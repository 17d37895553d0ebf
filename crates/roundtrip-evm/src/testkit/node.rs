//! Real nodes for tests: Anvil, and hardhat where its stricter pool matters. Each runs as a
//! process of its own on a port that it chose, and is gone when its `Node` is dropped.
//!
//! ```text
//! spawn ──▶ its output names the port ──▶ url, client ──▶ drop: killed, reaped
//! ```
//!
//! A node stays in the caller's process group, so that an interrupted test run takes its
//! nodes along; neither node starts processes of its own. Only a test process that is killed
//! outright leaves its nodes behind.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::rpc::Rpc;
use alloy::primitives::{Address, TxHash, U64, U256};
use alloy::rpc::client::RpcClient;
use alloy::transports::TransportResult;
use reqwest::Url;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// How long a node may take until it listens.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Names the folder that is used in place of the project's `tools/`.
pub const TOOLS_VARIABLE: &str = "ROUNDTRIP_TOOLS";

const ANVIL: &str = "node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil";
const HARDHAT: &str = "node_modules/hardhat/internal/cli/bootstrap.js";
/// The last rules without a base fee.
const BEFORE_BASE_FEES: &str = "berlin";
const WEI_PER_ETHER: u64 = 1_000_000_000_000_000_000;

/// Why a node does not run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It is not installed.
    #[error("{0} is not there: run make tools")]
    NotInstalled(PathBuf),
    /// It could not be started.
    #[error("{program} did not start: {error}; run make tools")]
    NotStarted {
        /// What was to be started.
        program: PathBuf,
        /// Why it was not.
        error: io::Error,
    },
    /// It ended, or said nothing of a port in time.
    #[error("{program} does not listen; it said: {said}")]
    Silent {
        /// What was started.
        program: PathBuf,
        /// The first lines of its output.
        said: String,
    },
}

/// When a node makes blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mining {
    /// Only when told to.
    OnDemand,
    /// As often as this.
    Every {
        /// The time between two blocks.
        ms: u64,
    },
    /// One for each transaction. Anvil forgets some when many come at once.
    Each,
}

/// How Anvil is started.
#[derive(Clone, Debug)]
pub struct AnvilOptions {
    /// When it makes blocks.
    pub mining: Mining,
    /// A block is final two epochs later.
    pub slots_in_an_epoch: u64,
    /// How many accounts are funded; [`dev_signers`](super::account::dev_signers) knows ten.
    pub accounts: u32,
    /// What each of them has.
    pub balance_ether: u64,
    /// More arguments.
    pub extra: Vec<String>,
}

impl Default for AnvilOptions {
    fn default() -> Self {
        AnvilOptions {
            mining: Mining::OnDemand,
            slots_in_an_epoch: 2,
            accounts: 10,
            balance_ether: 10_000,
            extra: Vec::new(),
        }
    }
}

impl AnvilOptions {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--host".to_owned(), "127.0.0.1".into(), "--port".into(), "0".into()];
        match self.mining {
            Mining::OnDemand => arguments.push("--no-mining".into()),
            Mining::Every { ms } => arguments.extend(["--block-time".into(), seconds(ms)]),
            Mining::Each => {}
        }
        arguments.extend(["--slots-in-an-epoch".into(), self.slots_in_an_epoch.to_string()]);
        arguments.extend(["--accounts".into(), self.accounts.to_string()]);
        arguments.extend(["--balance".into(), self.balance_ether.to_string()]);
        arguments.extend(self.extra.iter().cloned());
        arguments
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

/// A running node.
pub struct Node {
    url: Url,
    client: RpcClient,
    process: Process,
}

impl Node {
    /// Starts Anvil.
    pub async fn anvil(options: AnvilOptions) -> Result<Node, NodeError> {
        let program = installed(ANVIL)?;
        let mut command = Command::new(&program);
        command.args(options.arguments());
        Node::start(command, &program, "Listening on ").await
    }

    /// Starts Anvil as a chain without a base fee: transactions pay a gas price.
    pub async fn anvil_at_a_gas_price() -> Result<Node, NodeError> {
        let extra = vec!["--hardfork".to_owned(), BEFORE_BASE_FEES.to_owned()];
        Node::anvil(AnvilOptions { extra, ..AnvilOptions::default() }).await
    }

    /// Starts hardhat's node, which makes blocks only when told to.
    pub async fn hardhat() -> Result<Node, NodeError> {
        Node::hardhat_of(None).await
    }

    /// The same as a chain without a base fee: transactions pay a gas price.
    pub async fn hardhat_at_a_gas_price() -> Result<Node, NodeError> {
        Node::hardhat_of(Some(BEFORE_BASE_FEES)).await
    }

    async fn hardhat_of(rules: Option<&str>) -> Result<Node, NodeError> {
        let program = installed(HARDHAT)?;
        let mut command = Command::new("node");
        command.arg(&program).args(["node", "--hostname", "127.0.0.1", "--port", "0"]);
        command.current_dir(tools()).env("HARDHAT_DISABLE_TELEMETRY_PROMPT", "true");
        command.envs(rules.map(|rules| ("HARDHAT_HARDFORK", rules)));
        Node::start(command, &program, "JSON-RPC server at http://").await
    }

    async fn start(command: Command, program: &Path, before_port: &'static str) -> Result<Node, NodeError> {
        let (process, listening) = Process::spawn(command, before_port)
            .map_err(|error| NodeError::NotStarted { program: program.to_owned(), error })?;
        let silent = |said| NodeError::Silent { program: program.to_owned(), said };
        let address = match tokio::time::timeout(START_TIMEOUT, listening).await {
            Ok(Ok(Listening::At(address))) => address,
            Ok(Ok(Listening::Never { said })) => return Err(silent(said)),
            Ok(Err(_)) | Err(_) => return Err(silent(String::new())),
        };
        let text = format!("http://{address}");
        let (Ok(url), Ok(rpc)) = (text.parse(), Rpc::http(&text)) else { return Err(silent(address)) };
        Ok(Node { url, client: rpc.client(), process })
    }

    /// Where it listens.
    pub fn url(&self) -> Url {
        self.url.clone()
    }

    /// A client of it, over HTTP.
    pub fn client(&self) -> RpcClient {
        self.client.clone()
    }

    /// The id of its process.
    pub fn process_id(&self) -> u32 {
        self.process.child.id()
    }

    /// Mines this many blocks, the first with all that can be mined.
    pub async fn mine(&self, blocks: u64) -> TransportResult<()> {
        self.tell("hardhat_mine", json!([U64::from(blocks)])).await
    }

    /// Replaces this many of the newest blocks by empty ones. What was in them is forgotten,
    /// not put back into the pool. Only Anvil can.
    pub async fn reorg(&self, depth: u64) -> TransportResult<()> {
        self.tell("anvil_reorg", json!([depth, []])).await
    }

    /// The pool forgets a transaction.
    pub async fn drop_transaction(&self, hash: TxHash) -> TransportResult<()> {
        self.tell("hardhat_dropTransaction", json!([hash])).await
    }

    /// The pool forgets all transactions. Only Anvil can.
    pub async fn drop_all(&self) -> TransportResult<()> {
        self.tell("anvil_dropAllTransactions", json!([])).await
    }

    /// What gas costs in the next block.
    pub async fn set_next_base_fee(&self, wei: u64) -> TransportResult<()> {
        self.tell("hardhat_setNextBlockBaseFeePerGas", json!([U64::from(wei)])).await
    }

    /// What a transaction pays at least for a unit of gas, where there is no base fee.
    pub async fn set_gas_price(&self, wei: u64) -> TransportResult<()> {
        self.tell("hardhat_setMinGasPrice", json!([U64::from(wei)])).await
    }

    /// The next block is so much later.
    pub async fn pass_time(&self, seconds: u64) -> TransportResult<()> {
        self.tell("evm_increaseTime", json!([seconds])).await
    }

    /// Whether each transaction is mined as it comes.
    pub async fn set_automine(&self, on: bool) -> TransportResult<()> {
        self.tell("evm_setAutomine", json!([on])).await
    }

    /// Gives an account so much.
    pub async fn set_balance(&self, account: Address, ether: u64) -> TransportResult<()> {
        let wei = U256::from(ether).saturating_mul(U256::from(WEI_PER_ETHER));
        self.tell("hardhat_setBalance", json!([account, wei])).await
    }

    /// The number of the newest block.
    pub async fn block_number(&self) -> TransportResult<u64> {
        let number: U64 = self.client.request_noparams("eth_blockNumber").await?;
        Ok(number.to())
    }

    async fn tell(&self, method: &'static str, params: Value) -> TransportResult<()> {
        let _: Value = self.client.request(method, params).await?;
        Ok(())
    }
}

/// Where the tools are installed.
fn tools() -> PathBuf {
    match std::env::var_os(TOOLS_VARIABLE) {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools"),
    }
}

fn installed(tool: &str) -> Result<PathBuf, NodeError> {
    let program = tools().join(tool);
    if program.exists() { Ok(program) } else { Err(NodeError::NotInstalled(program)) }
}

/// What a node's output said of where it listens.
enum Listening {
    At(String),
    Never { said: String },
}

/// A child that is killed and reaped when dropped, and the thread that reads its output.
struct Process {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    fn spawn(mut command: Command, before_port: &'static str) -> io::Result<(Process, oneshot::Receiver<Listening>)> {
        let (output, input) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
        let mut process = Process { child: command.spawn()?, reader: None };
        // It holds our ends of the pipe: with them open the output would never end.
        drop(command);
        let (sender, receiver) = oneshot::channel();
        let reader = std::thread::Builder::new().name("node output".into());
        process.reader = Some(reader.spawn(move || read_output(output, before_port, sender))?);
        Ok((process, receiver))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; its output ends in either case, and the reader with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Reads until the port is named, then on to the end: a node stops when nobody reads it.
fn read_output(output: impl Read, before_port: &str, found: oneshot::Sender<Listening>) {
    const SAID_BYTES: usize = 2_000;
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let mut said = String::new();
    let address = lines.by_ref().find_map(|line| {
        let address = line.split_once(before_port).map(|(_, rest)| rest.trim_end_matches('/').to_owned());
        if said.len() < SAID_BYTES {
            said.push_str(&line);
            said.push('\n');
        }
        address
    });
    let _ = found.send(address.map_or(Listening::Never { said }, Listening::At));
    lines.for_each(drop);
}
