//! No tool at all: the input is the answer, for systems that only need the sending half.

use roundtrip::words::Payload;

use crate::errand::{Errand, Tool, ToolFuture};

/// Answers with what it is given.
#[derive(Clone, Copy, Debug)]
pub struct Identity;

impl Tool for Identity {
    fn ask<'a>(&'a self, errand: &'a Errand) -> ToolFuture<'a> {
        Box::pin(async move { Ok(Payload::json(errand.body.clone())) })
    }

    fn passes_on(&self) -> bool {
        true
    }
}
