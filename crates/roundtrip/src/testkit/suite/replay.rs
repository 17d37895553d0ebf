//! The whole story: each batch twice, and a restart after each.

use crate::testkit::bench::Bench;
use crate::testkit::script::{Trial, tell};

/// Replaying any batch has no second effect.
pub async fn a_replayed_batch_has_no_second_effect(bench: Bench) {
    let (_, batches) = tell(bench, Trial::Replay).await;
    assert!(batches > 30, "the story has {batches} batches");
}

/// A restart after any batch leaves everything as it was: leases with their tokens,
/// counts, cursors, lanes, seats, groups, receipts, and the places in the journal.
pub async fn a_restart_leaves_everything_as_it_was(bench: Bench) {
    let (_, batches) = tell(bench, Trial::Restart).await;
    assert!(batches > 30, "the story has {batches} batches");
}
