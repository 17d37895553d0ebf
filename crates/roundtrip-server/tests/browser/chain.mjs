// A request of a real chain, from the event that asked to the transaction that answered, watched on its own page.

import { BASE, assert, browse, call, go, says } from "./browser.mjs";

const STORY = ["admitted", "finalized", "leased", "answered", "assigned", "included", "confirmed", "ended"];
const { BOARD, NODE } = process.env;
/** What is asked: hello. */
const HELLO = "68656c6c6f";
const rpc = async (method, params) => {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const answer = await fetch(NODE, { method: "POST", headers: { "content-type": "application/json" }, body });
  return (await answer.json()).result;
};
const poll = async (found) => {
  for (let n = 0; n < 300; n += 1) {
    const value = await found();
    if (value) return value;
    await new Promise((then) => setTimeout(then, 50));
  }
  throw new Error("it never came");
};

await browse(
  async (page) => {
    // A hash is looked for as an id first.
    page.expected = ["404"];
    await page.goto(BASE);
    await says(page, "h1", "Overview");
    const { id } = await poll(async () => (await call("/v1/requests", undefined, null)).requests[0]);
    await go(page, `#/requests/${id}`, id.slice(0, 6));
    await says(page, ".facts", "of dev");
    await says(page, "pre.json", `0x${HELLO}`);
    const {
      jobs: [job],
    } = await call("/v1/work/lease", { route: "board", worker: "tester", wait_ms: 10_000 }, null);
    const { ANSWER, CONTENT } = process.env;
    await call("/v1/work/answer", { jobs: [{ id: job.id, token: job.token, response: { content: CONTENT, answer: ANSWER } }] }, null);
    await says(page, ".timeline", "by tester");
    await says(page, ".timeline", "Settled");
    const story = await page.locator(".timeline li").evaluateAll((all) => all.map((one) => one.dataset.event));
    assert.deepEqual([...story].sort(), [...STORY].sort());
    assert.deepEqual(
      story.filter((event) => event !== "finalized"),
      STORY.filter((event) => event !== "finalized"),
    );
    // Its bodies are gone; what answered it is read from the chain.
    await says(page, ".note", "a store keeps them only while a request is live");
    await says(page, ".card", "respond(uint256,bytes32,bytes)");
    await says(page, ".card pre.json", ANSWER);
    // It is found by the transaction that asked for it, which no store remembers.
    const logs = await rpc("eth_getLogs", [{ fromBlock: "earliest", address: BOARD }]);
    const { transactionHash } = logs.find((log) => log.data.includes(HELLO));
    await go(page, `#/requests?q=${transactionHash}`, "Requests");
    await says(page, "h2", "It asks for");
    await says(page, `tbody a[href="#/requests/${id}"]`, id.slice(0, 6));
    await says(page, "tbody .badge", "settled");
    await go(page, "#/listeners", "Listeners");
    await says(page, ".card", "board@dev");
    await says(page, ".card .status", "following");
    await says(page, ".nodes", "answers");
  },
  { token: null },
);
