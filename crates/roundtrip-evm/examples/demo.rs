//! The main job, killed on the way: 1,000 requests are asked on a development chain, and a
//! relay on an embedded store answers them by transactions. The relay is a process of its
//! own, and is killed and started again while it works; the chain reorgs, drops transactions
//! and loses answers. At the end an outside checker, which reads only the chain and the
//! submitter's list, says what came of it.
//!
//! ```text
//! cargo run --release -p roundtrip-evm --features testkit --example demo
//! ```
//!
//! The development chain executes the sample contract only; the tests do the same on Anvil.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use alloy::primitives::Bytes;
use alloy::sol_types::SolEvent;
use roundtrip_evm::testkit::account::dev_signers;
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::checker::check;
use roundtrip_evm::testkit::child::{Child, Orders, obey};
use roundtrip_evm::testkit::deployment::{Failed, answer_to};
use roundtrip_evm::testkit::devchain::{DevBlock, DevChain, DevChainOptions, Faults};
use roundtrip_evm::testkit::submitter::{Submitter, SubmitterOptions};

const REQUESTS: usize = 1000;
const KILLS: usize = 4;
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
    // The same program is the relay, when it is started with orders.
    match std::env::args().nth(1) {
        Some(orders) if !orders.starts_with('{') => {
            eprintln!("usage: demo; it takes no arguments");
            Ok(ExitCode::FAILURE)
        }
        Some(orders) => {
            runtime.block_on(obey(&serde_json::from_str::<Orders>(&orders)?))?;
            Ok(ExitCode::SUCCESS)
        }
        None => runtime.block_on(demo()),
    }
}

async fn demo() -> Result<ExitCode, Failed> {
    let started = Instant::now();
    let folder = tempfile::tempdir()?;
    let chain = DevChain::new(DevChainOptions { finality: FINAL_DEPTH, ..DevChainOptions::default() });
    let served = chain.serve_http().await?;
    let orders = Orders {
        url: served.url(),
        store: format!("sqlite:{}", folder.path().join("demo.db").display()),
        board: chain.deploy_board(&[]),
        from_block: 0,
        lanes: vec![6, 7, 8, 9],
        final_depth: FINAL_DEPTH,
        clock_ahead_ms: 0,
    };
    let lanes = orders.lane_accounts();
    let orders = Orders { board: chain.deploy_board(&lanes), ..orders };
    let payloads: Vec<Bytes> = (0..REQUESTS).map(|n| format!("request {n}").into_bytes().into()).collect();
    println!("development chain at {}: {REQUESTS} requests to {}", orders.url, orders.board);
    println!("relay on {} with {} lanes, killed {KILLS} times on the way", orders.store, lanes.len());

    chain.set_faults(WEATHER);
    let keys = dev_signers().into_iter().take(4).collect();
    let submitter = Submitter::start(chain.client(), orders.board, keys, payloads.clone(), SubmitterOptions::default());
    carry(&chain, &orders).await?;
    chain.set_faults(Faults::default());
    let mining = tokio::spawn(mine(chain.clone()));
    submitter.finish().await?;
    mining.abort();

    let verdict = check(&chain.client(), orders.board, &payloads, &lanes, answer_to).await?;
    println!("{} blocks, {:.1} s", chain.head().height.0, started.elapsed().as_secs_f32());
    println!("{verdict}");
    let clean = verdict.to_string() == format!("settled {REQUESTS}, lost 0, doubled 0");
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn mine(chain: DevChain) {
    loop {
        tokio::time::sleep(BLOCK).await;
        chain.mine();
    }
}

/// How many requests have a final answer.
fn answered(chain: &DevChain) -> usize {
    let (blocks, newest) = (chain.blocks(), chain.head().height.0);
    let deep = blocks.iter().filter(|block| block.number() + FINAL_DEPTH <= newest);
    let answers = |block: &DevBlock| {
        block.logs().filter(|log| log.topics().first() == Some(&RequestBoard::Responded::SIGNATURE_HASH)).count()
    };
    deep.map(|block| answers(block)).sum()
}

/// Mines, and kills and starts the relay, until every answer is final.
async fn carry(chain: &DevChain, orders: &Orders) -> Result<(), Failed> {
    let program = std::env::current_exe()?;
    let mut relay = Child::start(&program, orders)?;
    let (mut kills, mut moved, mut settled) = (0, Instant::now(), 0);
    let mut bar = Bar::new();
    while settled < REQUESTS {
        tokio::time::sleep(BLOCK).await;
        chain.mine();
        let now = answered(chain);
        if now != settled {
            (settled, moved) = (now, Instant::now());
        }
        bar.show(settled, kills, chain.head().height.0)?;
        if settled * (KILLS + 1) > REQUESTS * (kills + 1) && kills < KILLS {
            relay.kill()?;
            relay = Child::start(&program, orders)?;
            kills += 1;
        }
        if moved.elapsed() > PATIENCE {
            return Err(format!("nothing was settled for {PATIENCE:?}").into());
        }
    }
    bar.end()?;
    relay.stop().await
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
