//! A tool that lives on a chain: a function of a contract is read, and what it returns is the answer.

use roundtrip::words::Payload;
use roundtrip_evm::{ContractRead, Outcome, ReadError};

use crate::errand::{Errand, Meaning, Tool, ToolFuture, Trouble};

/// A contract as a tool.
#[derive(Debug)]
pub struct ContractTool(pub ContractRead);

impl ContractTool {
    async fn call(&self, errand: &Errand) -> Result<Payload, Trouble> {
        let data = self.0.data(&|root| errand.part(root)).map_err(trouble_of)?;
        let value = self.0.read(&data).await.map_err(trouble_of)?;
        Ok(Payload::json(value.to_string()))
    }
}

impl Tool for ContractTool {
    fn ask<'a>(&'a self, errand: &'a Errand) -> ToolFuture<'a> {
        Box::pin(self.call(errand))
    }
}

/// What it means that a read has no value. What a contract returns that its signature cannot read
/// may be the node's fault, and costs an attempt.
pub(crate) fn trouble_of(error: ReadError) -> Trouble {
    let text = error.to_string();
    let meaning = match error {
        ReadError::Arguments(_) => Meaning::Fatal,
        ReadError::Reverted { outcome: Outcome::AlreadyDone, .. } => Meaning::AlreadyDone,
        ReadError::Reverted { outcome: Outcome::Retry, .. } => Meaning::Retry,
        // A read has no lane to blame.
        ReadError::Reverted { outcome: Outcome::Fatal | Outcome::LaneToBlame, .. } => Meaning::Fatal,
        ReadError::Unreadable(_) => Meaning::Retry,
        ReadError::NoAnswer(_) => Meaning::Unavailable,
    };
    Trouble::new(meaning, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failed_read_means() {
        let reverted = |outcome| ReadError::Reverted { outcome, text: "no".into() };
        for (error, meaning) in [
            (ReadError::Arguments("no".into()), Meaning::Fatal),
            (reverted(Outcome::Fatal), Meaning::Fatal),
            (reverted(Outcome::LaneToBlame), Meaning::Fatal),
            (reverted(Outcome::Retry), Meaning::Retry),
            (reverted(Outcome::AlreadyDone), Meaning::AlreadyDone),
            (ReadError::Unreadable("no".into()), Meaning::Retry),
            (ReadError::NoAnswer("no".into()), Meaning::Unavailable),
        ] {
            assert_eq!(trouble_of(error.clone()).meaning, meaning, "{error}");
        }
    }
}
