//! A configuration to start from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::Context;

/// What `roundtrip init` writes.
pub const STARTER: &str = include_str!("starter.toml");

/// Writes it; a file that is there is left alone.
pub fn write(file: &Path) -> anyhow::Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).open(file);
    let mut opened = match opened {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            anyhow::bail!("{} is there already; nothing was changed", file.display())
        }
        opened => opened.with_context(|| format!("{} cannot be written", file.display()))?,
    };
    opened.write_all(STARTER.as_bytes()).with_context(|| format!("{} cannot be written", file.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::load;
    use crate::plan::Plan;

    #[test]
    fn the_starter_makes_sense() {
        let loaded = load("starter.toml", STARTER, []).unwrap();
        let plan = Plan::of(&loaded).unwrap();
        assert_eq!(plan.routes.len(), 1);
    }

    /// Whoever takes the comment signs away gets what the comments promise.
    #[test]
    fn what_the_starter_suggests_makes_sense_too() {
        let suggested: String =
            STARTER.lines().map(|line| format!("{}\n", line.strip_prefix("#: ").unwrap_or(line))).collect();
        let loaded = load("starter.toml", &suggested, []).unwrap();
        let plan = Plan::of(&loaded).unwrap();
        assert_eq!((plan.routes.len(), plan.destinations.len()), (2, 3));
    }
}
