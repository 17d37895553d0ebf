//! How far each listener is.

use super::desk::look;
use super::given::Reach;
use super::requests::{lasts, word};
use super::show::{self, Table, line, or_dash};
use crate::api::listeners::{Listeners, WireListener};

/// Lists them.
pub(super) async fn list(reach: &Reach) -> anyhow::Result<()> {
    let found: Listeners = look(reach, async |desk| desk.get("/v1/listeners").await).await?;
    show::print(reach.json, &found, |found| table(&found.listeners))
}

/// The listeners in one view.
pub(super) fn table(listeners: &[WireListener]) -> String {
    if listeners.is_empty() {
        return "no listener has read anything yet\n".to_owned();
    }
    let mut table =
        Table::of(&["listener", "state", "cursor", "read", "final", "head", "behind", "age", "nodes", "detail"]);
    for listener in listeners {
        let healthy = listener.nodes.iter().filter(|node| node.healthy).count();
        let nodes = match listener.nodes.len() {
            0 => "-".to_owned(),
            all => format!("{healthy}/{all}"),
        };
        table.row([
            listener.name.clone(),
            word(&listener.state),
            or_dash(listener.cursor),
            or_dash(listener.read_to),
            or_dash(listener.finalized),
            or_dash(listener.head),
            or_dash(listener.behind_blocks),
            lasts(listener.behind_ms),
            nodes,
            line(listener.detail.as_deref().unwrap_or_default()),
        ]);
    }
    table.to_string()
}
