//! The process that the crash tests kill: a deployment on the sample contract, or listeners.

use roundtrip_evm::testkit::child::AnyOrders;
use roundtrip_evm::testkit::deployment::Failed;

fn main() -> Result<(), Failed> {
    let orders = std::env::args().nth(1).ok_or("usage: evm-victim ORDERS, as JSON")?;
    let orders: AnyOrders = serde_json::from_str(&orders)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(orders.obey())
}
