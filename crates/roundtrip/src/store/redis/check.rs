//! What a server must be like to keep a store, checked once at the start: a pure function of
//! what it says about itself.

use std::collections::BTreeMap;

use redis::Value;

use super::link::Link;

/// The oldest server whose scripts and streams do what the store relies on.
const OLDEST: u32 = 7;
/// What is asked about.
const SETTINGS: [&str; 3] = ["appendonly", "appendfsync", "maxmemory-policy"];

/// What a server says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// As `INFO server` has it; nothing, if it may not be asked.
    version: Option<String>,
    /// Whether it is a node of a cluster, whatever the URL says.
    pub(super) is_cluster: bool,
    /// Nothing, if it may not be asked.
    settings: Option<BTreeMap<String, String>>,
}

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The store must not be opened.
    Refuse(String),
    /// It may, and somebody should know.
    Warn(String),
}

/// Asks the server.
pub(super) async fn ask(link: &Link) -> Said {
    let info = link.run(redis::cmd("INFO").arg("server")).await.ok();
    let info: String = info.and_then(|info| redis::from_redis_value(info).ok()).unwrap_or_default();
    let config = link.run(redis::cmd("CONFIG").arg("GET").arg(&SETTINGS)).await.ok();
    let is_cluster = line(&info, "redis_mode:").is_some_and(|mode| mode == "cluster");
    Said { version: line(&info, "redis_version:"), is_cluster, settings: config.and_then(settings) }
}

pub(super) fn line(info: &str, name: &str) -> Option<String> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(|said| said.trim().to_owned())
}

pub(super) fn settings(config: Value) -> Option<BTreeMap<String, String>> {
    redis::from_redis_value(config).ok()
}

/// What is wrong with a server that says this.
pub(super) fn findings(said: &Said) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &said.version {
        Some(version) => findings.extend(too_old(version)),
        None => findings.push(Finding::Warn(format!("its version could not be checked: it must be {OLDEST} or newer"))),
    }
    let Some(settings) = &said.settings else {
        findings.push(Finding::Warn(
            "its settings could not be checked (CONFIG GET is not allowed): see to it that appendonly is yes, \
             appendfsync is always and maxmemory-policy is noeviction"
                .to_owned(),
        ));
        return findings;
    };
    let is = |name: &str| settings.get(name).map_or("unknown", String::as_str);
    if is("appendonly") != "yes" {
        findings.push(Finding::Refuse(
            "appendonly is not yes: a restart would lose what was acknowledged; set `appendonly yes` and \
             `appendfsync always`"
                .to_owned(),
        ));
    } else if is("appendfsync") != "always" {
        findings.push(Finding::Warn(format!(
            "appendfsync is {}: up to a second of acknowledged writes, or more, is lost in a crash; set \
             `appendfsync always`",
            is("appendfsync")
        )));
    }
    if is("maxmemory-policy") != "noeviction" {
        findings.push(Finding::Refuse(format!(
            "maxmemory-policy is {}: a full server would throw requests away; set `maxmemory-policy noeviction`",
            is("maxmemory-policy")
        )));
    }
    findings
}

fn too_old(version: &str) -> Option<Finding> {
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    let is_new = major.is_some_and(|major| major >= OLDEST);
    (!is_new).then(|| Finding::Refuse(format!("its version is {version}: use {OLDEST} or newer")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(version: &str, [only, sync, policy]: [&str; 3]) -> Said {
        let settings = SETTINGS.iter().zip([only, sync, policy]);
        let settings = settings.map(|(name, value)| ((*name).to_owned(), value.to_owned())).collect();
        Said { version: Some(version.to_owned()), is_cluster: false, settings: Some(settings) }
    }

    /// Each finding by its first letter and the setting that it names.
    fn check(said: Said, expected: &[(&str, &str)]) {
        let findings = findings(&said);
        assert_eq!(findings.len(), expected.len(), "{findings:?}");
        for (finding, (kind, names)) in findings.iter().zip(expected) {
            let (is, text) = match finding {
                Finding::Refuse(text) => ("refuse", text),
                Finding::Warn(text) => ("warn", text),
            };
            assert!(is == *kind && text.contains(names), "{finding:?}");
        }
    }

    #[test]
    fn a_server_that_loses_what_it_acknowledged_is_refused_or_warned_of() {
        let good = ["yes", "always", "noeviction"];
        check(said("7.0.15", good), &[]);
        check(said("8.2.1", good), &[]);
        check(said("6.2.14", good), &[("refuse", "7 or newer")]);
        check(said("strange", good), &[("refuse", "strange")]);
        check(said("7.4.0", ["no", "always", "noeviction"]), &[("refuse", "`appendonly yes`")]);
        check(said("7.4.0", ["yes", "everysec", "noeviction"]), &[("warn", "up to a second")]);
        check(said("7.4.0", ["yes", "always", "allkeys-lru"]), &[("refuse", "`maxmemory-policy noeviction`")]);
        let worst = said("6.0.0", ["no", "no", "volatile-ttl"]);
        check(worst, &[("refuse", "7 or newer"), ("refuse", "appendonly"), ("refuse", "volatile-ttl")]);
    }

    #[test]
    fn what_cannot_be_checked_is_said() {
        check(Said::default(), &[("warn", "version"), ("warn", "CONFIG")]);
    }
}
