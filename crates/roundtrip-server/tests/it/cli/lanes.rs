//! Lanes on a real node: every order, at the instance that sends and on its store.

use alloy::primitives::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Shell;
use crate::chain::{Site, work};

/// Makes a block as often as this; 0 for none until it is said again.
pub(super) async fn blocks_every(site: &Site, seconds: u64) {
    let _: Value = site.node.client().request("evm_setIntervalMining", (seconds,)).await.unwrap();
}

/// What is on a slot and no longer wanted is replaced by nothing, and its answer waits for a person.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_slot_leaves_a_dead_letter() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let config = site.config("sqlite:store.db").replace("lanes = [\"a\", \"b\"]", "lanes = [\"a\"]");
    let program = site.start(folder.path(), &config, &[]);
    let (_address, api) = watch::channel(program.base().to_owned());
    let worker = tokio::spawn(work(api));
    let shell = Shell::beside(folder.path(), &program);
    shell.until(&["lanes", "list"], |found| !found["lanes"][0].is_null()).await;
    shell.says(&["lanes", "pause", "a"]);
    let payloads: [Bytes; 1] = [b"one".to_vec().into()];
    site.ask(&payloads).finish().await.unwrap();
    shell.until(&["requests", "list", "--state", "ready"], |found| !found["requests"][0].is_null()).await;
    blocks_every(&site, 0).await;
    shell.says(&["lanes", "resume", "a"]);
    let shown = shell.until(&["lanes", "show", "a"], |lane| lane["parcels"][0]["stage"] == "assigned").await;
    let nonce = shown["parcels"][0]["nonce"].to_string();
    let said = shell.says(&["lanes", "cancel", "a", "--nonce", &nonce]);
    assert_eq!(said, format!("lane a is to cancel slot {nonce}; its answers are dead letters then\n"));
    shell.until(&["lanes", "show", "a"], |lane| lane["parcels"][0]["attempts"][1].is_object()).await;
    blocks_every(&site, 1).await;
    let dead = shell.until(&["dead", "list"], |found| found["total"] == 1).await;
    assert_eq!(dead["causes"][0]["cause"], "cancelled by anybody", "{dead}");
    // Its timeline tells of each attempt: the one that carried it, and the one that took its place.
    let shown = shell.json(&["requests", "list", "--state", "dead"]);
    let id = shown["requests"][0]["id"].as_str().unwrap();
    let shown = shell.json(&["requests", "show", id]);
    let entries = shown["timeline"]["entries"].as_array().unwrap();
    let at = entries.iter().position(|entry| entry["event"] == "assigned").unwrap();
    let told: Vec<_> =
        entries[at..].iter().map(|entry| (entry["event"].as_str().unwrap(), &entry["carries"])).collect();
    let (carried, used_up, silent) = (json!(true), json!(false), Value::Null);
    let story = [("assigned", &carried), ("cancel_wished", &silent), ("attempted", &used_up), ("died", &silent)];
    assert_eq!(
        told.iter().filter(|(event, _)| !["included", "confirmed"].contains(event)).copied().collect::<Vec<_>>(),
        story
    );
    let fees = [0, 2].map(|n| entries[at + n]["fee_most"].as_str().unwrap().parse::<u128>().unwrap());
    assert!(fees[1] > fees[0], "what replaces pays more: {fees:?}");
    let table = shell.says(&["requests", "show", id]);
    let replaced = entries[at + 2]["transaction"].as_str().unwrap();
    let told = format!("#{nonce}, {replaced}, at most {} wei a gas, carries nothing", fees[1]);
    assert!(table.contains(&told), "{table}");
    // It has its answer still, which a person may throw away: its slot is used up for good.
    let preview = shell.says(&["dead", "retry", "--all", "--anew"]);
    assert!(preview.ends_with("1 dead letter would be worked out anew: say --yes to do it\n"), "{preview}");
    assert_eq!(shell.says(&["dead", "retry", "--all", "--anew", "--yes"]), "1 dead letter worked out anew\n");
    site.settled(&payloads).await;
    let shown = shell.json(&["requests", "show", id]);
    let entries = shown["timeline"]["entries"].as_array().unwrap();
    let after = entries.iter().skip_while(|entry| entry["event"] != "reworked");
    let told: Vec<&str> = after.map(|entry| entry["event"].as_str().unwrap()).take(3).collect();
    assert_eq!(told, ["reworked", "leased", "answered"], "a worker had it again");
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_order_of_a_lane() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let program = site.start(folder.path(), &site.config("sqlite:store.db"), &[]);
    let (_address, api) = watch::channel(program.base().to_owned());
    let worker = tokio::spawn(work(api));
    let shell = Shell::beside(folder.path(), &program);
    shell.until(&["lanes", "list"], |found| found["lanes"].as_array().is_some_and(|lanes| lanes.len() == 2)).await;
    assert_eq!(shell.says(&["lanes", "pause", "a", "--reason", "a look at it"]), "lane a is paused\n");
    shell.says(&["lanes", "pause", "b"]);
    let table = shell.says(&["lanes", "list"]);
    assert!(table.contains("paused: a look at it") && table.contains("paused: by anybody"), "{table}");
    // Nothing is mined, so that what is sent stays where it is.
    let payloads: [Bytes; 1] = [b"one".to_vec().into()];
    site.ask(&payloads).finish().await.unwrap();
    shell.until(&["requests", "list", "--state", "ready"], |found| !found["requests"][0].is_null()).await;
    blocks_every(&site, 0).await;
    assert_eq!(shell.says(&["lanes", "resume", "a"]), "lane a sends again\n");
    let shown = shell.until(&["lanes", "show", "a"], |lane| lane["parcels"][0]["stage"] == "assigned").await;
    let nonce = shown["parcels"][0]["nonce"].to_string();
    let table = shell.says(&["lanes", "show", "a"]);
    assert!(table.contains("NEWEST ATTEMPT") && table.contains("assigned"), "{table}");
    let said = shell.says(&["lanes", "cancel", "a", "--nonce", &nonce, "--requeue"]);
    assert_eq!(said, format!("lane a is to cancel slot {nonce}; its answers go out again\n"));
    shell.until(&["lanes", "show", "a"], |lane| lane["parcels"][0]["attempts"][1].is_object()).await;
    assert!(shell.says(&["lanes", "show", "a"]).contains("assigned, to be cancelled"));
    blocks_every(&site, 1).await;
    site.settled(&payloads).await;
    for (arguments, part) in [
        (&["lanes", "reconcile", "a", "--next", "1000000"][..], "only a stopped lane is reconciled"),
        (&["lanes", "cancel", "a", "--nonce", "999999"], "nothing is on slot 999999"),
        (&["lanes", "rebuild", "nowhere"], "no lane and no destination with lanes is called \"nowhere\""),
    ] {
        let said = shell.refuses(arguments);
        assert!(said.contains(part), "{arguments:?} says {said}");
    }
    let rebuilt = shell.says(&["lanes", "rebuild", "a", "--patience", "1s"]);
    assert!(rebuilt.starts_with("rebuilt: 0 transactions were unknown"), "{rebuilt}");
    worker.abort();
    program.stop();
    let shell = Shell::alone(folder.path());
    assert_eq!(shell.says(&["lanes", "resume", "b"]), "lane b sends again\n");
    assert_eq!(shell.says(&["lanes", "pause", "b", "--reason", "later"]), "lane b is paused\n");
    assert_eq!(shell.json(&["lanes", "show", "b"])["reason"], "later");
    let said = shell.refuses(&["lanes", "rebuild", "a"]);
    assert!(said.contains("no instance runs, and lanes are rebuilt by the one that sends"), "{said}");
    let said = shell.refuses(&["lanes", "reconcile", "a", "--next", "7"]);
    assert!(said.contains("only a stopped lane"), "{said}");
}
