//! The main job, killed on the way: 1,000 requests are asked on a development chain, and the
//! program answers them by transactions, on an embedded store, with a worker that pulls over
//! HTTP. The program is killed and started again while it works; the chain reorgs, drops
//! transactions and loses answers. At the end an outside checker, which reads only the chain
//! and the submitter's list, says what came of it.
//!
//! ```text
//! make demo            # KEEP=1 leaves everything running, to look around
//! ```
//!
//! The development chain executes the sample contract only; the tests do the same on Anvil.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use alloy::primitives::{Address, Bytes, keccak256};
use alloy::sol_types::SolEvent;
use roundtrip_evm::testkit::account::{dev_key, dev_signers};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::checker::check;
use roundtrip_evm::testkit::deployment::{Failed, answer_to};
use roundtrip_evm::testkit::devchain::{DevBlock, DevChain, DevChainOptions, Faults};
use roundtrip_evm::testkit::submitter::{Submitter, SubmitterOptions};
use roundtrip_server::api::auth;
use serde_json::{Value, json};

const REQUESTS: usize = 1000;
const KILLS: usize = 4;
/// How long tokens are good.
const ENTRY: Duration = Duration::from_secs(12 * 3600);
const LANES: [usize; 4] = [6, 7, 8, 9];
const BLOCK: Duration = Duration::from_millis(40);
const FINAL_DEPTH: u64 = 4;
const WEATHER: Faults = Faults {
    delay_ms: 0,
    blind: 10,
    fail: 5,
    lose_answer: 10,
    lag: 0,
    lag_blocks: 0,
    drop: 5,
    evict: 0,
    spike: 0,
    spike_times: 0,
    spike_blocks: 0,
    reorg: 40,
    reorg_blocks: FINAL_DEPTH - 1,
};
/// If nothing is settled for so long, something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<ExitCode, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(demo())
}

async fn demo() -> Result<ExitCode, Failed> {
    let started = Instant::now();
    let folder = tempfile::tempdir()?;
    let chain = DevChain::new(DevChainOptions { finality: FINAL_DEPTH, ..DevChainOptions::default() });
    let served = chain.serve_http().await?;
    let lanes: Vec<Address> = LANES.map(|n| dev_key(n).address()).to_vec();
    let board = chain.deploy_board(&lanes);
    let door = Door::new()?;
    std::fs::write(folder.path().join("roundtrip.toml"), config(&served.url(), chain.chain_id(), board, &door))?;
    let payloads: Vec<Bytes> = (0..REQUESTS).map(|n| format!("request {n}").into_bytes().into()).collect();
    println!("development chain at {}: {REQUESTS} requests to {board}", served.url());
    println!(
        "roundtrip run in {}, with {} lanes, killed {KILLS} times on the way",
        folder.path().display(),
        lanes.len()
    );
    let keep = std::env::var_os("KEEP").is_some_and(|keep| !keep.is_empty());
    if keep {
        println!("watch it: {}", door.link()?);
    }

    chain.set_faults(WEATHER);
    let keys = dev_signers().into_iter().take(4).collect();
    let submitter = Submitter::start(chain.client(), board, keys, payloads.clone(), SubmitterOptions::default());
    let program = carry(&chain, folder.path(), &door).await?;
    chain.set_faults(Faults::default());
    let mining = tokio::spawn(mine(chain.clone()));
    submitter.finish().await?;
    let verdict = check(&chain.client(), board, &payloads, &lanes, answer_to).await?;
    println!("{} blocks, {:.1} s", chain.head().height.0, started.elapsed().as_secs_f32());
    println!("{verdict}");
    let clean = verdict.to_string() == format!("settled {REQUESTS}, lost 0, doubled 0");
    if keep {
        println!(
            "the dashboard stays at {}, the API's description at {}/docs, until ctrl-c",
            door.link()?,
            door.base()
        );
        tokio::signal::ctrl_c().await?;
    }
    mining.abort();
    program.stop()?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn config(url: &str, chain_id: u64, board: Address, door: &Door) -> String {
    let names: Vec<String> = LANES.iter().map(|n| format!("\"lane-{n}\"")).collect();
    let signer = |n: &usize| format!("[lanes.lane-{n}]\nsigner = {{ key = {{ env = \"LANE_{n}\" }} }}\n\n");
    let signers: String = LANES.iter().map(signer).collect();
    format!(
        r#"seat = "500ms"

[store]
url = "sqlite:demo.db"

[api]
listen = "{listen}"

[api.auth]
secret = {{ env = "API_SECRET" }}

[log]
format = "json"

[chains.dev]
chain_id = {chain_id}
urls = ["{url}"]
finality = {FINAL_DEPTH}
poll = "50ms"

{signers}[routes.board]
to = "board"
identity = ["/address", "/args/id"]
lease = "500ms"
# Those who kill the program must not use up anybody's patience.
crashes_max = 65535
backoff = {{ first = "0s" }}

[[routes.board.events]]
chain = "dev"
event = "Requested(uint256 indexed id, address indexed from, bytes payload)"
addresses = ["{board}"]

[destinations.board.transactions]
chain = "dev"
lanes = [{lanes}]
contract = "{board}"
function = "respond(uint256 id, bytes32 content, bytes answer)"
arguments = {{ id = "/request/args/id", content = "/response/content", answer = "/response/answer" }}
window = 64
gas = 150000
resend = "1s"
timeout = "2s"
"#,
        lanes = names.join(", "),
        listen = door.listen,
    )
}

/// Where the program listens, the same after each kill, and who may come in.
#[derive(Clone)]
struct Door {
    listen: SocketAddr,
    secret: String,
}

impl Door {
    fn new() -> Result<Door, Failed> {
        // It is free again at once, and nobody else is likely to ask for it.
        let listen = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let secret = std::iter::repeat_with(fastrand::alphanumeric).take(auth::SECRET_BYTES_MIN * 2).collect();
        Ok(Door { listen, secret })
    }

    fn base(&self) -> String {
        format!("http://{}", self.listen)
    }

    fn token(&self, name: &str, roles: &[auth::Role]) -> Result<String, Failed> {
        Ok(auth::sign(self.secret.as_bytes(), name, roles, ENTRY)?)
    }

    /// A link that logs whoever opens it into the dashboard.
    fn link(&self) -> Result<String, Failed> {
        Ok(auth::link(&self.base(), &self.token("you", &[auth::Role::Operator])?))
    }
}

/// The program at work; dropped, it is killed.
struct Program {
    process: Child,
}

impl Program {
    /// Starts it, and waits until it listens.
    fn start(folder: &Path, door: &Door) -> Result<Program, Failed> {
        let mut command = Command::new(program()?);
        command.arg("run").current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.env("API_SECRET", &door.secret);
        for n in LANES {
            command.env(format!("LANE_{n}"), dev_key(n).to_bytes().to_string());
        }
        let mut process = command.spawn()?;
        let said = process.stderr.take().ok_or("a process without standard error")?;
        let mut lines = BufReader::new(said).lines().map_while(Result::ok);
        let listens = |line: String| serde_json::from_str::<Value>(&line).is_ok_and(|told| told["address"].is_string());
        if !lines.by_ref().any(listens) {
            return Err("the program does not listen".into());
        }
        // Somebody must read on, or it would wait to be heard.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Program { process })
    }

    fn kill(&mut self) -> std::io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    fn stop(mut self) -> Result<(), Failed> {
        Command::new("kill").arg("-TERM").arg(self.process.id().to_string()).status()?;
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the program ended with {status}").into()) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may be gone already, which is as well.
        let _gone = self.kill();
    }
}

/// The program that was built beside this one.
fn program() -> Result<PathBuf, Failed> {
    let beside = std::env::current_exe()?.parent().and_then(Path::parent).map(|folder| folder.join("roundtrip"));
    let found = beside.filter(|path| path.is_file());
    found.ok_or_else(|| "the program is not built: run `cargo build --release -p roundtrip-server`".into())
}

async fn mine(chain: DevChain) {
    loop {
        tokio::time::sleep(BLOCK).await;
        chain.mine();
    }
}

/// A worker as anybody could write it, in any language: pulls, answers, and comes again
/// whatever happens.
async fn work(door: Door) -> Result<(), Failed> {
    let token = door.token("demo", &[auth::Role::Worker])?;
    let client = roundtrip_evm::rpc::web_client(Duration::from_secs(10))?;
    let post = async |path: &str, body: Value| -> Option<Value> {
        let call = client.post(format!("{}{path}", door.base())).bearer_auth(&token);
        let call = call.header("content-type", "application/json").body(body.to_string());
        serde_json::from_str(&call.send().await.ok()?.text().await.ok()?).ok()
    };
    loop {
        let call = json!({"route": "board", "worker": "demo", "max": 64, "wait_ms": 1000});
        let leased = post("/v1/work/lease", call).await;
        let Some(jobs) = leased.as_ref().and_then(|leased| leased["jobs"].as_array()) else {
            tokio::time::sleep(BLOCK).await;
            continue;
        };
        let answers = jobs.iter().map(answered).collect::<Result<Vec<Value>, Failed>>()?;
        if !answers.is_empty() {
            // If it is not heard, the lease runs out and the work comes again.
            post("/v1/work/answer", json!({"jobs": answers})).await;
        }
    }
}

fn answered(job: &Value) -> Result<Value, Failed> {
    let payload: Bytes = job["payload"]["args"]["payload"].as_str().ok_or("a request without a payload")?.parse()?;
    let response = json!({"content": keccak256(&payload), "answer": answer_to(&payload)});
    Ok(json!({"id": job["id"], "token": job["token"], "response": response}))
}

/// How many requests have a final answer.
fn settled(chain: &DevChain) -> usize {
    let (blocks, newest) = (chain.blocks(), chain.head().height.0);
    let deep = blocks.iter().filter(|block| block.number() + FINAL_DEPTH <= newest);
    let answers = |block: &DevBlock| {
        block.logs().filter(|log| log.topics().first() == Some(&RequestBoard::Responded::SIGNATURE_HASH)).count()
    };
    deep.map(|block| answers(block)).sum()
}

/// Mines, and kills and starts the program, until every answer is final.
async fn carry(chain: &DevChain, folder: &Path, door: &Door) -> Result<Program, Failed> {
    let mut program = Program::start(folder, door)?;
    let worker = tokio::spawn(work(door.clone()));
    let (mut kills, mut moved, mut done) = (0, Instant::now(), 0);
    let mut bar = Bar::new();
    while done < REQUESTS {
        tokio::time::sleep(BLOCK).await;
        chain.mine();
        let now = settled(chain);
        if now != done {
            (done, moved) = (now, Instant::now());
        }
        bar.show(done, kills, chain.head().height.0)?;
        if done * (KILLS + 1) > REQUESTS * (kills + 1) && kills < KILLS {
            program.kill()?;
            program = Program::start(folder, door)?;
            kills += 1;
        }
        if moved.elapsed() > PATIENCE {
            return Err(format!("nothing was settled for {PATIENCE:?}").into());
        }
        if worker.is_finished() {
            worker.await??;
            return Err("the worker ended".into());
        }
    }
    worker.abort();
    bar.end()?;
    Ok(program)
}

/// A line that fills up; where nobody watches, a line for every tenth.
struct Bar {
    live: bool,
    tenths: usize,
}

impl Bar {
    const WIDTH: usize = 40;

    fn new() -> Bar {
        Bar { live: std::io::stdout().is_terminal(), tenths: 0 }
    }

    fn show(&mut self, settled: usize, kills: usize, blocks: u64) -> std::io::Result<()> {
        let tenths = settled * 10 / REQUESTS;
        if !self.live && tenths == self.tenths {
            return Ok(());
        }
        self.tenths = tenths;
        let filled = "#".repeat(settled * Self::WIDTH / REQUESTS);
        let mut out = std::io::stdout();
        let (start, end) = if self.live { ("\r", "") } else { ("", "\n") };
        write!(
            out,
            "{start}[{filled:<width$}] {settled:>4}/{REQUESTS}  block {blocks:>4}  killed {kills}{end}",
            width = Self::WIDTH
        )?;
        out.flush()
    }

    fn end(&self) -> std::io::Result<()> {
        if self.live { writeln!(std::io::stdout()) } else { Ok(()) }
    }
}
