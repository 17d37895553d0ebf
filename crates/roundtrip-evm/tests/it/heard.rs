//! What is logged while a test runs.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span;

/// Everything that is logged on this thread, at every level, by whomever.
#[derive(Clone, Default)]
pub(super) struct Heard(Arc<Mutex<String>>);

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl tracing::Subscriber for Heard {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut heard = self.0.lock().unwrap();
        span.record(&mut Words(&mut heard));
        heard.push('\n');
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        let mut heard = self.0.lock().unwrap();
        values.record(&mut Words(&mut heard));
        heard.push('\n');
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut heard = self.0.lock().unwrap();
        heard.push_str(event.metadata().target());
        event.record(&mut Words(&mut heard));
        heard.push('\n');
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Heard {
    /// All of it so far.
    pub(super) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}
