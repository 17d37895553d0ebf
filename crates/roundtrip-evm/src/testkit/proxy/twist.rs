//! What is changed in the JSON of requests and answers, as data.

use serde_json::{Value, json};

use super::faults::{Fault, Plan};

/// The calls of a request, or the answers to them: one, or those of a batch.
pub(super) fn each(value: &Value) -> &[Value] {
    match value {
        Value::Array(all) => all,
        one => std::slice::from_ref(one),
    }
}

fn each_mut(value: &mut Value) -> &mut [Value] {
    match value {
        Value::Array(all) => all,
        one => std::slice::from_mut(one),
    }
}

pub(super) fn method(call: &Value) -> Option<&str> {
    call.get("method")?.as_str()
}

/// A number as JSON-RPC writes it.
pub(super) fn number(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

/// Where a call names the block that it asks about, if the newest is a choice.
fn block_param(method: &str) -> Option<usize> {
    match method {
        "eth_getBlockByNumber" => Some(0),
        "eth_getTransactionCount" => Some(1),
        _ => None,
    }
}

/// Whether what it answers depends on the node's newest block.
pub(super) fn asks_for_head(call: &Value) -> bool {
    let Some(method) = method(call) else { return false };
    method == "eth_blockNumber" || block_param(method).is_some_and(|at| is_newest(&call["params"][at]))
}

fn is_newest(block: &Value) -> bool {
    matches!(block.as_str(), Some("latest" | "pending")) || block.is_null()
}

/// Makes calls ask about this block in place of the newest; answers how many.
pub(super) fn ask_in_the_past(request: &mut Value, block: u64) -> u64 {
    let mut changed = 0;
    for call in each_mut(request).iter_mut().filter(|call| asks_for_head(call)) {
        changed += 1;
        let Some(at) = method(call).and_then(block_param) else { continue };
        let Some(params) = call.get_mut("params").and_then(Value::as_array_mut) else { continue };
        params.resize((at + 1).max(params.len()), Value::Null);
        params[at] = json!(format!("{block:#x}"));
    }
    changed
}

/// Changes an answer as planned; answers what had an effect, and how often.
pub(super) fn twist(request: &Value, answer: &mut Value, past: Option<u64>, plan: &Plan) -> Vec<(Fault, u64)> {
    let (mut empty, mut null, mut turned) = (0, 0, 0);
    for one in each_mut(answer) {
        let asked = each(request).iter().find(|call| call.get("id") == one.get("id")).and_then(method);
        let (Some(asked), Some(result)) = (asked, one.get_mut("result")) else { continue };
        match (asked, past) {
            ("eth_blockNumber", Some(past)) => *result = json!(format!("{past:#x}")),
            ("eth_getLogs", _) if plan.empty_logs => empty += replace(result, json!([])),
            ("eth_getTransactionReceipt" | "eth_getBlockReceipts", _) if plan.null_receipts => {
                null += replace(result, Value::Null);
            }
            _ => {}
        }
    }
    if let (Some(turn), Value::Array(answers)) = (plan.turn, answer)
        && answers.len() > 1
    {
        let by = 1 + turn % (answers.len() - 1);
        answers.rotate_left(by);
        turned = 1;
    }
    vec![(Fault::EmptyLogs, empty), (Fault::NullReceipts, null), (Fault::Reordered, turned)]
}

/// 1 if it was another.
fn replace(value: &mut Value, by: Value) -> u64 {
    let other = *value != by;
    *value = by;
    u64::from(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::proxy::faults::Fate;

    fn calm() -> Plan {
        Plan {
            delay_ms: None,
            fate: Fate::Whole,
            turn: None,
            lag_blocks: None,
            empty_logs: false,
            null_receipts: false,
        }
    }

    fn call(id: u64, method: &str, params: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    fn result(id: u64, result: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "result": result})
    }

    #[test]
    fn what_asks_for_the_newest_block_asks_for_an_older_one() {
        let table = [
            ("eth_blockNumber", json!([]), json!([]), 1),
            ("eth_getBlockByNumber", json!(["latest", true]), json!(["0x10", true]), 1),
            ("eth_getBlockByNumber", json!(["0x5", true]), json!(["0x5", true]), 0),
            ("eth_getBlockByNumber", json!(["finalized", true]), json!(["finalized", true]), 0),
            ("eth_getTransactionCount", json!(["0xa", "latest"]), json!(["0xa", "0x10"]), 1),
            ("eth_getTransactionCount", json!(["0xa", "pending"]), json!(["0xa", "0x10"]), 1),
            ("eth_getTransactionCount", json!(["0xa"]), json!(["0xa", "0x10"]), 1),
            ("eth_getTransactionCount", json!(["0xa", "0x5"]), json!(["0xa", "0x5"]), 0),
            ("eth_getLogs", json!([{"toBlock": "latest"}]), json!([{"toBlock": "latest"}]), 0),
        ];
        for (method, params, changed, count) in table {
            let mut request = call(1, method, params);
            assert_eq!(ask_in_the_past(&mut request, 16), count, "{method}");
            assert_eq!(request, call(1, method, changed));
        }
    }

    #[test]
    fn an_answer_is_changed_by_the_call_that_it_answers() {
        let request = json!([
            call(1, "eth_getLogs", json!([])),
            call(2, "eth_getTransactionReceipt", json!([])),
            call(3, "eth_blockNumber", json!([])),
            call(4, "eth_chainId", json!([])),
        ]);
        let whole =
            json!([result(4, json!("0x1")), result(3, json!("0x20")), result(2, json!({})), result(1, json!([1]))]);
        let check = |plan: Plan, past, expected: Value, counts: [u64; 3]| {
            let mut answer = whole.clone();
            let counted = twist(&request, &mut answer, past, &plan);
            assert_eq!(answer, expected);
            assert_eq!(counted.iter().map(|(_, times)| *times).collect::<Vec<_>>(), counts);
        };
        check(calm(), None, whole.clone(), [0, 0, 0]);
        let mut expected = whole.clone();
        expected[1]["result"] = json!("0x10");
        check(calm(), Some(16), expected, [0, 0, 0]);
        let mut expected = whole.clone();
        expected[3]["result"] = json!([]);
        check(Plan { empty_logs: true, ..calm() }, None, expected, [1, 0, 0]);
        let mut expected = whole.clone();
        expected[2]["result"] = Value::Null;
        check(Plan { null_receipts: true, ..calm() }, None, expected, [0, 1, 0]);
        let turned = json!([whole[2], whole[3], whole[0], whole[1]]);
        check(Plan { turn: Some(1), ..calm() }, None, turned, [0, 0, 1]);
    }

    #[test]
    fn what_is_so_already_is_no_fault() {
        let request = call(1, "eth_getLogs", json!([]));
        let mut answer = result(1, json!([]));
        let counted = twist(&request, &mut answer, None, &Plan { empty_logs: true, turn: Some(0), ..calm() });
        assert!(counted.iter().all(|(_, times)| *times == 0));
        let mut error = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}});
        let before = error.clone();
        twist(&request, &mut error, None, &Plan { empty_logs: true, ..calm() });
        assert_eq!(error, before);
    }
}
