//! The memory store passes the suite, bare and with natural batching in front.

use roundtrip::testkit::bench::{InBatches, InMemory};

mod bare {
    use super::*;
    roundtrip::conformance!(InMemory::default());
}

mod batched {
    use super::*;
    roundtrip::conformance!(InBatches::of(InMemory::default()));
}
