//! Dead letters: what they died of, and many of them retried or dropped, after a preview.

use anyhow::ensure;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::desk::{self, Desk, look};
use super::given::Reach;
use super::requests::{Filter, retrying};
use super::routes::must_exist;
use super::show::{self, Table, ago, now_ms, short, whole_line};
use crate::api::Whole;
use crate::api::dead::{DeadCall, DeadFilter, DeadMended, DeadPreview};

/// What is done to dead letters.
#[derive(Subcommand)]
pub(super) enum Dead {
    /// Lists what dead letters died of. The letters themselves: `roundtrip requests list --state dead`.
    List {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        reach: Reach,
    },
    /// Has them worked on again, from their first attempt, or, where they have an answer, only sent again; without --yes, only says which.
    Retry {
        #[command(flatten)]
        mending: Mending,
        /// Works them out anew, where they have an answer: that was wrong, and is thrown away.
        #[arg(long)]
        anew: bool,
    },
    /// Ends them for good; without --yes, only says which.
    Drop(Mending),
}

/// Which dead letters.
#[derive(Args)]
pub(super) struct Which {
    #[command(flatten)]
    filter: Filter,
    /// Only of this cause, as `roundtrip dead list` shows it.
    #[arg(long)]
    cause: Option<String>,
}

/// Dead letters that are mended.
#[derive(Args)]
pub(super) struct Mending {
    #[command(flatten)]
    which: Which,
    /// All of them, where nothing else says which.
    #[arg(long)]
    all: bool,
    /// Does it.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    reach: Reach,
}

/// What a bulk command comes to.
#[derive(Serialize)]
struct Mended {
    /// `retry`, `rework` or `drop`.
    remedy: &'static str,
    /// Whether it was done; else only said.
    done: bool,
    /// With how many.
    requests: u64,
    /// How many were no dead letters any longer, or may not be reworked now.
    passed_over: u64,
    /// What they died of.
    preview: DeadPreview,
}

impl Which {
    fn wire(&self) -> DeadFilter {
        let Filter { route, since, until, error, prefix } = self.filter.clone();
        let (from_ms, to_ms, id_prefix) = (since.map(Whole), until.map(Whole), prefix);
        DeadFilter { route, cause: self.cause.clone(), answered: None, error, from_ms, to_ms, id_prefix, up_to: None }
    }
}

impl Dead {
    pub(super) async fn act(self) -> anyhow::Result<()> {
        match self {
            Dead::List { which, reach } => {
                let found = look(&reach, async |desk| found(desk, &which.wire()).await).await?;
                show::print(reach.json, &found, causes)
            }
            Dead::Retry { mending, anew } => mending.act(retrying(anew)).await,
            Dead::Drop(mending) => mending.act("drop").await,
        }
    }
}

impl Mending {
    async fn act(self, remedy: &'static str) -> anyhow::Result<()> {
        let filter = self.which.wire();
        ensure!(
            self.all || filter != DeadFilter::default(),
            "nothing says which dead letters: narrow them (--route, --cause, --error, --since, --until, --prefix), or say --all"
        );
        let reach = &self.reach;
        let mended = match self.yes {
            true => {
                let mended = async |desk: &Desk| {
                    let preview = found(desk, &filter).await?;
                    let (requests, passed_over) = mend(desk, remedy, &filter, self.all, &preview).await?;
                    Ok(Mended { remedy, done: true, requests, passed_over, preview })
                };
                desk::order(reach, mended).await?
            }
            false => {
                let preview = look(reach, async |desk| found(desk, &filter).await).await?;
                Mended { remedy, done: false, requests: preview.total, passed_over: 0, preview }
            }
        };
        show::print(reach.json, &mended, told)
    }
}

/// What there is of them; none of a route that there is not is a mistake.
async fn found(desk: &Desk, filter: &DeadFilter) -> anyhow::Result<DeadPreview> {
    let found: DeadPreview = desk.find("/v1/dead", filter).await?;
    if found.total == 0 {
        must_exist(desk, filter.route.as_deref()).await?;
    }
    Ok(found)
}

/// Does it to what the preview has shown, page by page.
async fn mend(
    desk: &Desk,
    remedy: &str,
    filter: &DeadFilter,
    all: bool,
    preview: &DeadPreview,
) -> anyhow::Result<(u64, u64)> {
    if preview.total == 0 {
        return Ok((0, 0));
    }
    let up_to = if preview.more { None } else { preview.up_to.map(Whole) };
    let filter = DeadFilter { up_to, ..filter.clone() };
    let mut call = DeadCall { filter, all, ..DeadCall::default() };
    let bar = show::bar((!preview.more).then_some(preview.total), remedy);
    let (mut done, mut passed_over) = (0, 0);
    loop {
        let page: DeadMended = desk.post(&format!("/v1/dead/{remedy}"), &call).await?;
        (done, passed_over) = (done + page.done, passed_over + page.passed_over);
        bar.set_position(done + passed_over);
        match page.next {
            Some(next) => call.after = Some(Whole(next)),
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok((done, passed_over))
}

fn causes(found: &DeadPreview) -> String {
    if found.total == 0 {
        return "no dead letter is like this\n".to_owned();
    }
    let (now, mut table) = (now_ms(), Table::of(&["requests", "route", "class", "oldest", "example", "cause"]));
    for cause in &found.causes {
        table.row([
            cause.requests.to_string(),
            cause.route.clone(),
            cause.class.to_string(),
            ago(cause.oldest_at_ms, now),
            short(&cause.example),
            whole_line(&cause.cause),
        ]);
    }
    let others = if found.others > 0 { format!("and {} of other causes\n", found.others) } else { String::new() };
    let more = if found.more { "and more than were looked at\n" } else { "" };
    format!("{table}{others}{more}")
}

fn told(mended: &Mended) -> String {
    let at_least = if mended.preview.more && !mended.done { "at least " } else { "" };
    let letters = match mended.requests {
        1 => "1 dead letter".to_owned(),
        count => format!("{at_least}{count} dead letters"),
    };
    let (remedy, causes) = (mended.remedy, causes(&mended.preview));
    let past = match remedy {
        "drop" => "dropped",
        "rework" => "worked out anew",
        _ => "retried",
    };
    match (mended.done, mended.preview.total) {
        (_, 0) => causes,
        (false, _) => format!("{causes}{letters} would be {past}: say --yes to do it\n"),
        (true, _) if mended.passed_over > 0 => {
            let not = if remedy == "rework" {
                "were none any longer, or have a lane that is stopped"
            } else {
                "were none any longer"
            };
            format!("{letters} {past}; {} {not}\n", mended.passed_over)
        }
        (true, _) => format!("{letters} {past}\n"),
    }
}
