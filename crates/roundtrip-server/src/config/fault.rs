//! What is wrong with a configuration, and where.

use std::fmt;

use super::file::Path;

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    File {
        /// Which file.
        file: String,
        /// Which line, from 1.
        line: usize,
        /// Which character of it, from 1.
        column: usize,
    },
    /// In an environment variable.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Place::Variable(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it stands.
    pub place: Place,
    /// Which key it is about.
    pub path: Path,
    /// What is wrong, and what to do.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path.join("."))?;
        }
        f.write_str(&self.text)
    }
}

/// Everything that is wrong, in the order in which it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    /// Only this.
    pub fn one(fault: Fault) -> Faults {
        Faults(vec![fault])
    }

    /// The same in the order in which they stand, none twice.
    #[must_use]
    pub fn in_order(mut self) -> Faults {
        let line = |fault: &Fault| match &fault.place {
            Place::File { line, column, .. } => (*line, *column),
            Place::Variable(_) => (usize::MAX, 0),
        };
        self.0.sort_by_key(line);
        self.0.dedup();
        self
    }

    /// This value, or what was found to be wrong.
    pub fn unless_any<T>(self, value: T) -> Result<T, Faults> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}
