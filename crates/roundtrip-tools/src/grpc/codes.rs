//! What a status of gRPC means, as pure functions.

use std::collections::BTreeMap;

use tonic::Code;

use crate::errand::Meaning;

/// What codes mean, where it is something else than usual; by their names, such as `NOT_FOUND`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Codes(Vec<(Code, Meaning)>);

/// All codes that say that something went wrong.
const NAMES: [(&str, Code); 16] = [
    ("CANCELLED", Code::Cancelled),
    ("UNKNOWN", Code::Unknown),
    ("INVALID_ARGUMENT", Code::InvalidArgument),
    ("DEADLINE_EXCEEDED", Code::DeadlineExceeded),
    ("NOT_FOUND", Code::NotFound),
    ("ALREADY_EXISTS", Code::AlreadyExists),
    ("PERMISSION_DENIED", Code::PermissionDenied),
    ("RESOURCE_EXHAUSTED", Code::ResourceExhausted),
    ("FAILED_PRECONDITION", Code::FailedPrecondition),
    ("ABORTED", Code::Aborted),
    ("OUT_OF_RANGE", Code::OutOfRange),
    ("UNIMPLEMENTED", Code::Unimplemented),
    ("INTERNAL", Code::Internal),
    ("UNAVAILABLE", Code::Unavailable),
    ("DATA_LOSS", Code::DataLoss),
    ("UNAUTHENTICATED", Code::Unauthenticated),
];

/// The code of a name.
pub fn code(name: &str) -> Result<Code, String> {
    let found = NAMES.iter().find(|(known, _)| *known == name).map(|(_, code)| *code);
    found.ok_or_else(|| {
        let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        format!("{name:?} is no code: use one of {}", known.join(", "))
    })
}

/// The name of a code.
pub(super) fn name(code: Code) -> &'static str {
    NAMES.iter().find(|(_, known)| *known == code).map_or("OK", |(name, _)| name)
}

impl Codes {
    /// What these codes mean; others mean what they usually do.
    pub fn read(own: &BTreeMap<String, Meaning>) -> Result<Codes, String> {
        own.iter().map(|(name, meaning)| Ok((code(name)?, *meaning))).collect::<Result<_, _>>().map(Codes)
    }

    /// What a code means. A service that is not there or is full did not get to it; what is wrong with the
    /// request stays wrong; everything else may go well later.
    pub(super) fn meaning(&self, code: Code) -> Meaning {
        if let Some((_, own)) = self.0.iter().find(|(known, _)| *known == code) {
            return *own;
        }
        match code {
            Code::AlreadyExists => Meaning::AlreadyDone,
            Code::Unavailable | Code::ResourceExhausted => Meaning::Unavailable,
            Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated => Meaning::Fatal,
            _ => Meaning::Retry,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn what_a_code_means() {
        let usual = Codes::default();
        for (name, known) in NAMES {
            let expected = match name {
                "ALREADY_EXISTS" => Meaning::AlreadyDone,
                "UNAVAILABLE" | "RESOURCE_EXHAUSTED" => Meaning::Unavailable,
                "CANCELLED" | "UNKNOWN" | "DEADLINE_EXCEEDED" | "ABORTED" | "INTERNAL" | "DATA_LOSS" => Meaning::Retry,
                _ => Meaning::Fatal,
            };
            assert_eq!((usual.meaning(known), code(name), super::name(known)), (expected, Ok(known), name));
        }
        let own = Codes::read(&BTreeMap::from([("NOT_FOUND".to_owned(), Meaning::Retry)])).unwrap();
        assert_eq!((own.meaning(Code::NotFound), own.meaning(Code::Aborted)), (Meaning::Retry, Meaning::Retry));
        let told = Codes::read(&BTreeMap::from([("NotFound".to_owned(), Meaning::Retry)])).unwrap_err();
        assert!(told.starts_with("\"NotFound\" is no code: use one of CANCELLED, "), "{told}");
    }
}
