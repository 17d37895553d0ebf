//! Views of the user's choice: created, replaced and dropped when a store starts.
//!
//! ```text
//!   what is declared, what is there and ours ──▶ decide ──▶ DDL, under the migrations' lock, in one transaction
//! ```
//!
//! A comment on each view says whose it is and what it was made of. One that is as declared is not
//! touched, so a role that creates nothing is enough once all are there.
//!
//! Failure modes: a view or table of that name that is somebody else's is never replaced; the
//! start is refused. One that others' views are built on cannot be replaced either: the server
//! says so, and nothing was changed.

use std::collections::BTreeMap;

use super::migrate::LOCK;
use super::wire::{PgError, Wire, param, quoted};
use crate::inbox::FieldPath;
use crate::store::StoreError;
use crate::store::projection::{ColumnSource, ColumnType, Stage, View, ViewColumn, Words};

const FUNCTIONS: &str = include_str!("schema/views.sql");
/// All that bears a comment of this store's, and all that has the name of a declared view.
const THERE: &str = "
SELECT n.nspname::text, c.relname::text, c.relkind = 'v', coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (c.relkind = 'v' AND left(obj_description(c.oid, 'pg_class'), length($1)) = $1)
   OR (n.nspname, c.relname) IN (SELECT * FROM unnest($2::text[], $3::text[]))";
const SCHEMA: &str = "SELECT 1 WHERE to_regnamespace($1) IS NOT NULL";

/// Where a view is.
type Place = (String, String);

/// What is there under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum There {
    /// A view of this store's, made of what has this hash.
    Ours(String),
    Foreign,
}

/// What a start does.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan<'a> {
    drop: Vec<Place>,
    create: Vec<(Place, &'a View)>,
}

/// Brings the views to what is declared.
pub(super) async fn bring(wire: &mut Wire, server: &str, store: &str, views: &[View]) -> Result<(), StoreError> {
    match try_bring(wire, store, views).await {
        Ok(None) => Ok(()),
        Ok(Some((schema, name))) => Err(StoreError::Io {
            path: server.to_owned(),
            reason: format!(
                "{schema}.{name} is there and is no view of this store: give the view another name, or remove what is there"
            ),
        }),
        Err(error) => Err(error.at(server)),
    }
}

/// Answers what is in the way, if something is.
async fn try_bring(wire: &mut Wire, store: &str, views: &[View]) -> Result<Option<Place>, PgError> {
    wire.run("BEGIN").await?;
    wire.run(LOCK).await?;
    let there = there(wire, store, views).await?;
    let in_the_way = match decide(views, store, &there) {
        Ok(plan) => {
            carry_out(wire, store, &plan).await?;
            None
        }
        Err(place) => Some(place),
    };
    wire.run(if in_the_way.is_none() { "COMMIT" } else { "ROLLBACK" }).await?;
    Ok(in_the_way)
}

async fn there(wire: &mut Wire, store: &str, views: &[View]) -> Result<BTreeMap<Place, There>, PgError> {
    let mark = mark(store);
    let (schemas, names): (Vec<String>, Vec<String>) = views.iter().map(|view| place(view, store)).unzip();
    let mut there = BTreeMap::new();
    for row in wire.query(THERE, vec![param(mark.clone()), param(schemas), param(names)]).await? {
        let (is_view, comment): (bool, String) = (row.try_get(2)?, row.try_get(3)?);
        let is = match comment.strip_prefix(&mark).filter(|_| is_view) {
            Some(hash) => There::Ours(hash.to_owned()),
            None => There::Foreign,
        };
        there.insert((row.try_get(0)?, row.try_get(1)?), is);
    }
    Ok(there)
}

/// What to drop and what to create; or what is in the way.
fn decide<'a>(views: &'a [View], store: &str, there: &BTreeMap<Place, There>) -> Result<Plan<'a>, Place> {
    let declared: BTreeMap<Place, &View> = views.iter().map(|view| (place(view, store), view)).collect();
    let mut plan = Plan::default();
    for (place, is) in there {
        match (is, declared.get(place)) {
            (There::Foreign, Some(_)) => return Err(place.clone()),
            (There::Ours(made_of), Some(view)) if *made_of == hash(view, store) => {}
            (There::Ours(_), _) => plan.drop.push(place.clone()),
            (There::Foreign, None) => {}
        }
    }
    for (place, view) in declared {
        if there.get(&place) != Some(&There::Ours(hash(view, store))) {
            plan.create.push((place, view));
        }
    }
    Ok(plan)
}

async fn carry_out(wire: &mut Wire, store: &str, plan: &Plan<'_>) -> Result<(), PgError> {
    for (schema, name) in &plan.drop {
        wire.run(&format!("DROP VIEW {}.{}", quoted(schema), quoted(name))).await?;
    }
    if !plan.create.is_empty() {
        wire.run(FUNCTIONS).await?;
    }
    for ((schema, name), view) in &plan.create {
        if wire.query(SCHEMA, vec![param(quoted(schema))]).await?.is_empty() {
            wire.run(&format!("CREATE SCHEMA {}", quoted(schema))).await?;
        }
        let (at, mark) = (format!("{}.{}", quoted(schema), quoted(name)), mark(store) + &hash(view, store));
        wire.run(&format!("CREATE VIEW {at} AS {}; COMMENT ON VIEW {at} IS {}", select(view, store), text(&mark)))
            .await?;
    }
    Ok(())
}

fn place(view: &View, store: &str) -> Place {
    (view.schema.clone().unwrap_or_else(|| store.to_owned()), view.name.clone())
}

/// What the comments of a store's views begin with.
fn mark(store: &str) -> String {
    format!("A view of the Roundtrip store in schema {store}; made of ")
}

fn hash(view: &View, store: &str) -> String {
    blake3::hash(select(view, store).as_bytes()).to_hex()[..16].to_owned()
}

/// A text as SQL writes it, whatever it holds.
fn text(text: &str) -> String {
    let (quotes, escapes) = (text.replace('\'', "''"), text.contains('\\'));
    if escapes { format!("E'{}'", quotes.replace('\\', "\\\\")) } else { format!("'{quotes}'") }
}

/// What a view shows.
fn select(view: &View, store: &str) -> String {
    let at = quoted(store);
    let columns = view.columns.iter().map(|column| {
        let shown = show(column, &view.route, &view.words, &at);
        format!("{shown} AS {}", quoted(&column.name))
    });
    let columns = columns.collect::<Vec<_>>().join(",\n    ");
    let route = text(view.route.as_str());
    // Each payload is read once, whatever number of columns its fields have.
    format!(
        "SELECT {columns}\nFROM {at}.live l LEFT JOIN {at}.held h ON h.seq = l.seq \
         LEFT JOIN {at}.response r ON r.seq = l.seq\n\
         CROSS JOIN LATERAL (SELECT {at}.shown_json(l.encoding, l.payload) AS json OFFSET 0) q\n\
         CROSS JOIN LATERAL (SELECT {at}.shown_json(r.encoding, r.payload) AS json OFFSET 0) a\n\
         WHERE l.route = (SELECT no FROM {at}.fixture WHERE kind = 0 AND name = {route})"
    )
}

fn show(column: &ViewColumn, route: &crate::words::RouteName, words: &Words, at: &str) -> String {
    let time = |column: &str| format!("{at}.shown_time({column})");
    let kind = column.kind.unwrap_or_default();
    match &column.from {
        ColumnSource::Id => "encode(l.id, 'hex')".to_owned(),
        ColumnSource::Number => "l.seq".to_owned(),
        ColumnSource::Route => format!("{}::text", text(route.as_str())),
        ColumnSource::State => state(words),
        ColumnSource::Key => "l.key".to_owned(),
        ColumnSource::AdmittedAt => time("l.admitted_at"),
        ColumnSource::DueAt => time("l.due"),
        ColumnSource::DeadlineAt => time("l.deadline"),
        ColumnSource::LeasedUntil => time("h.lease_until"),
        ColumnSource::ForgetAt => time("l.forget_at"),
        ColumnSource::Request(path) => payload(("l", "q"), path.as_ref(), kind, at),
        ColumnSource::Response(path) => payload(("r", "a"), path.as_ref(), kind, at),
    }
}

/// The word for each state, by its number.
fn state(words: &Words) -> String {
    let live = Stage::ALL.into_iter().filter(|stage| stage.is_live());
    let cases = live.zip(0..).map(|(stage, number)| format!(" WHEN {number} THEN {}", text(words.of(stage))));
    format!("CASE CASE WHEN h.seq IS NULL THEN l.state ELSE 2 END{} END", cases.collect::<String>())
}

/// A payload or a field of it, of a row and of the JSON in it.
fn payload((row, json): (&str, &str), path: Option<&FieldPath>, kind: ColumnType, at: &str) -> String {
    let field = match (path, kind) {
        (None, ColumnType::Bytes) => return format!("{row}.payload"),
        (None, ColumnType::Json) => return format!("{json}.json"),
        (Some(path), ColumnType::Json) => return format!("{json}.json #> {}", steps(path)),
        (None, _) => format!("{at}.shown_text({row}.payload)"),
        (Some(path), _) => format!("({json}.json #>> {})", steps(path)),
    };
    match kind {
        ColumnType::Text | ColumnType::Json => field,
        ColumnType::Integer => format!("{at}.shown_integer({field})"),
        ColumnType::Numeric => format!("{at}.shown_numeric({field})"),
        ColumnType::Float => format!("{at}.shown_float({field})"),
        ColumnType::Boolean => format!("{at}.shown_boolean({field})"),
        ColumnType::Timestamp => format!("{at}.shown_timestamp({field})"),
        ColumnType::Seconds => format!("{at}.shown_since_1970({field}, 1)"),
        ColumnType::Milliseconds => format!("{at}.shown_since_1970({field}, 1000)"),
        ColumnType::Bytes => format!("{at}.shown_bytes({field})"),
    }
}

/// A pointer as the server's own paths are written.
fn steps(path: &FieldPath) -> String {
    let steps = path.as_str().split('/').skip(1).map(|step| text(&step.replace("~1", "/").replace("~0", "~")));
    format!("ARRAY[{}]", steps.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn view(name: &str, column: &str) -> View {
        let text = format!(r#"{{"route":"it's","name":"{name}","columns":[{{"name":"a\"b","from":"{column}"}}]}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn names_and_texts_cannot_leave_their_quotes() {
        let sql = select(&view("v", "request/a'b/c\\\\d"), "s\"t");
        assert!(sql.contains(r#"(q.json #>> ARRAY['a''b', E'c\\d']) AS "a""b""#), "{sql}");
        assert!(sql.contains(r#"FROM "s""t".live"#) && sql.contains("name = 'it''s'"), "{sql}");
    }

    #[test]
    fn only_what_differs_is_made_anew_and_only_ours_is_dropped() {
        let (same, changed, new) = (view("same", "id"), view("changed", "id"), view("new", "id"));
        let at = |name: &str| ("s".to_owned(), name.to_owned());
        let mut there = BTreeMap::from([
            (at("same"), There::Ours(hash(&same, "s"))),
            (at("changed"), There::Ours(hash(&view("changed", "key"), "s"))),
            (at("old"), There::Ours("x".to_owned())),
        ]);
        let views = [same, changed.clone(), new.clone()];
        let plan = decide(&views, "s", &there).unwrap();
        assert_eq!(plan.drop, [at("changed"), at("old")]);
        assert_eq!(plan.create, [(at("changed"), &changed), (at("new"), &new)]);
        there.insert(at("new"), There::Foreign);
        assert_eq!(decide(&views, "s", &there), Err(at("new")));
    }
}
