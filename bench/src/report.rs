//! The rows of a run, as JSON and as a table.

use serde::Serialize;

/// One comparison; above 1 is better.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) bench: String,
    pub(crate) store: &'static str,
    pub(crate) ours: f64,
    pub(crate) beside: String,
    pub(crate) theirs: f64,
    pub(crate) ratio: f64,
    pub(crate) unit: &'static str,
}

/// All comparisons of a run.
pub(crate) struct Report {
    rows: Vec<Row>,
    /// Which store the rows that come are about.
    pub(crate) store: &'static str,
}

impl Default for Report {
    fn default() -> Report {
        Report { rows: Vec::new(), store: "sqlite" }
    }
}

impl Report {
    /// Adds a pair of speeds: more is better.
    pub(crate) fn speed(&mut self, bench: String, ours: f64, beside: String, theirs: f64, unit: &'static str) {
        self.push(bench, ours, beside, theirs, ours / theirs, unit);
    }

    /// Adds a pair of costs: less is better.
    pub(crate) fn cost(&mut self, bench: String, ours: f64, beside: String, theirs: f64, unit: &'static str) {
        self.push(bench, ours, beside, theirs, theirs / ours, unit);
    }

    fn push(&mut self, bench: String, ours: f64, beside: String, theirs: f64, ratio: f64, unit: &'static str) {
        eprintln!("{bench}: {ours:.1} {unit}, {beside} {theirs:.1}: {ratio:.2}");
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        let (ours, theirs, ratio) = (round(ours), round(theirs), round(ratio));
        self.rows.push(Row { bench, store: self.store, ours, beside, theirs, ratio, unit });
    }

    pub(crate) fn write(&self, path: &str) -> std::io::Result<()> {
        if let Some(parent) = std::path::Path::new(path).parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&self.rows)? + "\n")
    }

    pub(crate) fn print(&self) {
        println!("| bench | ours | beside | theirs | ratio | unit |");
        println!("|---|---:|---|---:|---:|---|");
        for row in &self.rows {
            let Row { bench, ours, beside, theirs, ratio, unit, .. } = row;
            println!("| {bench} | {ours:.1} | {beside} | {theirs:.1} | {ratio:.2} | {unit} |");
        }
    }
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time that this process has used, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    cpu_seconds_of(std::process::id())
}

/// Processor time that a process has used, in seconds.
pub(crate) fn cpu_seconds_of(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |at: usize| after_name.split_whitespace().nth(at).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
