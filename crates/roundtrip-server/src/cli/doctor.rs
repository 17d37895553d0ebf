//! Whether all is well.

use std::fmt::Write;
use std::process::ExitCode;

use roundtrip::store::StoreError;

use super::desk::{NotReached, look};
use super::given::Reach;
use super::show;
use crate::doctor::{Diagnosis, Finding, Kind, Level};

/// The exit code where somebody should look.
const LOOK: u8 = 3;
/// The exit code where something is bad.
const BAD: u8 = 4;

/// Looks, and says what was found.
pub(super) async fn examine(reach: &Reach) -> anyhow::Result<ExitCode> {
    let looked = look(reach, async |desk| Ok((desk.get("/v1/doctor").await?, desk.is_instance()))).await;
    let alone = |finding| Diagnosis { findings: vec![finding], accounts: Vec::new(), looked_at_ms: None };
    let found = match looked {
        Ok((found, true)) => found,
        Ok((found, false)) => with_nobody(found),
        Err(error) => match (error.downcast_ref(), error.downcast_ref()) {
            (Some(why), _) => with_nobody(alone(unopened(why))),
            (_, Some(why)) => alone(unheard(why)),
            (None, None) => return Err(error),
        },
    };
    show::print(reach.json, &found, told)?;
    let worst = found.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Well);
    Ok(match worst {
        Level::Well => ExitCode::SUCCESS,
        Level::Look => ExitCode::from(LOOK),
        Level::Bad => ExitCode::from(BAD),
    })
}

/// What was found where the store alone was looked at: that comes after all that is worse than well.
fn with_nobody(mut found: Diagnosis) -> Diagnosis {
    let well = found.findings.iter().position(|finding| finding.level == Level::Well);
    found.findings.insert(well.unwrap_or(found.findings.len()), nobody());
    found
}

/// Where the instance says nothing, nobody knows what gets done.
fn unheard(why: &NotReached) -> Finding {
    Finding {
        level: Level::Bad,
        kind: Kind::NoInstance,
        name: None,
        about: "instance".to_owned(),
        found: format!("that at {} was not reached: {}", why.base, why.what),
        to_do: Some(why.to_do.to_owned()),
    }
}

/// Where no instance answers, the store may be well and nothing gets done.
fn nobody() -> Finding {
    Finding {
        level: Level::Look,
        kind: Kind::NoInstance,
        name: None,
        about: "instance".to_owned(),
        found: "none answers, and the store alone was looked at".to_owned(),
        to_do: Some("start it with `roundtrip run`, or say where it is with --url".to_owned()),
    }
}

/// Where the store cannot be opened, there is nothing else to look at.
fn unopened(why: &StoreError) -> Finding {
    let to_do = match why {
        StoreError::Unreachable { .. } => "see to it that it runs and can be reached from here; then look again",
        _ => "mend that, or correct store.url; then look again",
    };
    Finding {
        level: Level::Bad,
        kind: Kind::Store,
        name: None,
        about: "store".to_owned(),
        found: why.to_string(),
        to_do: Some(to_do.to_owned()),
    }
}

fn told(found: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &found.findings {
        let level = match finding.level {
            Level::Well => "well",
            Level::Look => "LOOK",
            Level::Bad => "BAD ",
        };
        let _ = writeln!(text, "{level}  {}: {}", finding.about, finding.found);
        if let Some(to_do) = &finding.to_do {
            let _ = writeln!(text, "      → {to_do}");
        }
    }
    let count = |level| found.findings.iter().filter(|finding| finding.level == level).count();
    let (bad, look) = (count(Level::Bad), count(Level::Look));
    let _ = match (bad, look) {
        (0, 0) => writeln!(text, "all is well"),
        _ => writeln!(text, "{bad} bad, {look} to look at"),
    };
    text
}
