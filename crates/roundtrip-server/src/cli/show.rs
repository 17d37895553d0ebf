//! What people and programs read: tables, ages, JSON; and bars while something takes long.

use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write as _};
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use roundtrip::clock::{Clock, SystemClock};
use serde::Serialize;

pub(super) use crate::api::views::time_text as time;

/// How many digits of an id a table shows.
const ID_DIGITS: usize = 16;
/// Longest text in a table, in characters.
const TEXT_CHARS_MAX: usize = 80;
/// How often a bar moves.
const BAR_EVERY: Duration = Duration::from_millis(120);

/// Rows under their names.
pub(super) struct Table {
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn of(names: &[&str]) -> Table {
        Table { rows: vec![names.iter().map(|name| name.to_uppercase()).collect()] }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| {
            self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                write!(line, "{cell:<width$}  ")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Prints JSON if it is wanted, or else what a person reads.
pub(super) fn print<T: Serialize>(json: bool, value: &T, table: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    match json {
        true => say(&format!("{}\n", serde_json::to_string_pretty(value)?)),
        false => say(&table(value)),
    }
}

/// Writes to standard output. Whoever reads it may have had enough, which is no fault.
pub(super) fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output takes nothing"),
    }
}

/// Now, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    SystemClock::new().now().0
}

/// How long ago a time is.
pub(super) fn ago(at_ms: u64, now_ms: u64) -> String {
    length(now_ms.saturating_sub(at_ms))
}

/// A length of time in its two largest units.
pub(super) fn length(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = ms / 1000;
    if seconds == 0 {
        return format!("{ms}ms");
    }
    let first = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (unit, name) = UNITS[first];
    let rest = UNITS.get(first + 1).map(|(next, name)| (seconds % unit / next, name)).filter(|(count, _)| *count > 0);
    match rest {
        Some((count, next)) => format!("{}{name} {count}{next}", seconds / unit),
        None => format!("{}{name}", seconds / unit),
    }
}

/// The beginning of an id.
pub(super) fn short(id: &str) -> String {
    id.chars().take(ID_DIGITS).collect()
}

/// A text in one line, whole: such as one that is to be given back.
pub(super) fn whole_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A text in one line of a table.
pub(super) fn line(text: &str) -> String {
    let line = whole_line(text);
    if line.chars().count() <= TEXT_CHARS_MAX {
        return line;
    }
    line.chars().take(TEXT_CHARS_MAX - 1).chain(['…']).collect()
}

/// A number, or nothing.
pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A bar on a terminal; where there is none, nothing is shown. Without a length it counts.
pub(super) fn bar(length: Option<u64>, what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let form = match length {
        Some(_) => "{msg} {wide_bar} {pos} of {len}, {eta} left",
        None => "{spinner} {msg} {pos}, {per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(BAR_EVERY);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_widest() {
        let mut table = Table::of(&["name", "n"]);
        table.row(["größer".to_owned(), "1".to_owned()]);
        table.row(["a".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "NAME    N\ngrößer  1\na\n");
    }

    #[test]
    fn lengths_have_two_units() {
        let check = |ms, text: &str| assert_eq!(length(ms), text);
        check(0, "0ms");
        check(999, "999ms");
        check(59_999, "59s");
        check(61_000, "1m 1s");
        check(3_600_000, "1h");
        check(3_660_000, "1h 1m");
        check(90_000_000, "1d 1h");
    }

    #[test]
    fn a_time_is_written_out_as_far_as_there_are_years() {
        assert_eq!(time(86_400_001), "1970-01-02T00:00:00.001Z");
        assert_eq!(time(253_402_300_799_999), "9999-12-31T23:59:59.999Z");
        assert_eq!((time(253_402_300_800_000), time(u64::MAX)), ("never".to_owned(), "never".to_owned()));
    }

    #[test]
    fn a_cell_is_one_line_of_bounded_length() {
        assert_eq!(line("a\nb"), "a b");
        assert_eq!(line(&"x".repeat(200)).chars().count(), TEXT_CHARS_MAX);
    }
}
