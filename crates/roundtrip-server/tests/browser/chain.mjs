// A request of a real chain, from the event that asked to the transaction that answered, watched on its own page;
// then its accounts and its nodes, as they run dry and fall silent.

import { BASE, ask, assert, browse, call, go, needs, rpc, says } from "./browser.mjs";

const STORY = ["admitted", "finalized", "leased", "answered", "assigned", "included", "confirmed", "ended"];
const { BOARD } = process.env;
/** What is asked: hello. */
const HELLO = "68656c6c6f";
const poll = async (found) => {
  for (let n = 0; n < 300; n += 1) {
    const value = await found();
    if (value) return value;
    await new Promise((then) => setTimeout(then, 50));
  }
  throw new Error("it never came");
};

/** The overview as somebody sees it who comes just now, after a look at what has changed. */
const afresh = async (page) => {
  await call("/v1/doctor", undefined, null);
  await go(page, "#/", "Overview");
  await page.reload();
  await says(page, "h1", "Overview");
};

/** Where a block and its finality come at once, its stage is told all the same, and its hash is known. */
async function atOnce(page) {
  await ask("another");
  const job = await poll(async () => {
    await rpc("anvil_mine", ["0x1"]);
    return (await call("/v1/work/lease", { route: "board", worker: "tester" }, null)).jobs[0];
  });
  await rpc("anvil_mine", ["0x3"]);
  const { ANSWER_2: answer, CONTENT_2: content } = process.env;
  await call("/v1/work/answer", { jobs: [{ id: job.id, token: job.token, response: { content, answer } }] }, null);
  await go(page, `#/requests/${job.id}`, job.id.slice(0, 6));
  await says(page, ".timeline .what", "On a slot");
  const timeline = async () => (await call(`/v1/requests/${job.id}/timeline`, undefined, null)).entries;
  const { transaction } = (await timeline()).find((entry) => entry.event === "assigned");
  await poll(async () => (await rpc("eth_getTransactionByHash", [transaction])) !== null);
  await rpc("anvil_mine", ["0x40"]);
  await says(page, ".timeline .what", "Settled");
  await says(page, ".timeline [data-event=included]", /block \d+/);
  const story = (await timeline()).map((entry) => entry.event).filter((event) => event !== "confirmed");
  assert.deepEqual(story.slice(-3), ["assigned", "included", "ended"]);
  await go(page, `#/requests?q=${transaction}`, "Requests");
  await says(page, "h2", "It answers");
  await page.locator(`tbody a[href="#/requests/${job.id}"]`).waitFor();
}

/** An account that runs dry is told of before it is empty, with what to send where. */
async function accounts(page) {
  const account = (await call("/v1/doctor", undefined, null)).accounts.find((one) => one.lane === "b");
  const set = (wei) => rpc("hardhat_setBalance", [account.address, `0x${wei.toString(16)}`]);
  await go(page, "#/lanes/b", "b");
  await says(page, ".facts", "ETH");
  await set(1_000_000_000n);
  await afresh(page);
  const low = needs(page, "account of lane b");
  await says(page, ".attention", "has 0.000000001 ETH, less than");
  await low.getByRole("button", { name: "Fund it" }).click();
  await says(page, "dialog .facts", account.address.slice(0, 8));
  await says(page, "dialog .facts", "It lacks at least");
  await page.getByRole("button", { name: "Look again" }).click();
  await says(page, "dialog [role=alert]", "It still has too little");
  await set(10n ** 18n);
  await page.getByRole("button", { name: "Look again" }).click();
  await low.waitFor({ state: "detached" });
}

/** With all nodes away, nobody knows how far the chain is. */
async function nodes(page) {
  await ask("cut");
  await go(page, "#/listeners", "Listeners");
  await says(page, ".card .status", "waits");
  await says(page, ".facts", /(at the head|behind) .* ago/);
  await page.locator(".nodes li.bad", { hasText: "does not answer well; last answered" }).waitFor();
  await page.locator(".nodes li.bad", { hasText: "never answered yet" }).waitFor();
  const told = await page.evaluate(async () => {
    const { lag, standing } = await import("/dashboard/pages/listeners.js");
    const now = Date.now();
    const listener = { state: "waits", behind_blocks: 0, looked_at_ms: now - 300_000 };
    const node = { healthy: true, asked_at_ms: now - 300_000, answered_at_ms: now - 300_000 };
    return [lag(listener), lag({ ...listener, behind_blocks: undefined }), standing(node)[1]];
  });
  assert.match(told[0], /^not known; at the head .* min .*ago$/);
  assert.equal(told[1], null);
  assert.match(told[2], /^last answered .* min .*ago, and was not asked since$/);
}

await browse(
  async (page) => {
    // A hash is looked for as an id first.
    page.expected = ["404"];
    await page.goto(BASE);
    await says(page, "h1", "Overview");
    const { id } = await poll(async () => (await call("/v1/requests", undefined, null)).requests[0]);
    await go(page, `#/requests/${id}`, id.slice(0, 6));
    await says(page, ".facts", "of dev");
    // The transaction that asked for it, which no store remembers.
    const logs = await rpc("eth_getLogs", [{ fromBlock: "earliest", address: BOARD }]);
    const { transactionHash } = logs.find((log) => log.data.includes(HELLO));
    const asking = page.locator(`.facts a[href="#/requests?q=${transactionHash}"]`);
    await asking.waitFor();
    await says(page, "pre.json", `0x${HELLO}`);
    // From here on a block comes when somebody says so, so that no step is passed over.
    await says(page, ".timeline", "Final");
    await rpc("evm_setIntervalMining", [0]);
    const {
      jobs: [job],
    } = await call("/v1/work/lease", { route: "board", worker: "tester", wait_ms: 10_000 }, null);
    const { ANSWER, CONTENT } = process.env;
    await call("/v1/work/answer", { jobs: [{ id: job.id, token: job.token, response: { content: CONTENT, answer: ANSWER } }] }, null);
    await says(page, ".timeline", "by tester");
    await says(page, ".timeline .what", "On a slot");
    for (const [blocks, stage] of [
      ["0x1", "In a block"],
      ["0x1", "Confirmed"],
      ["0x3", "Settled"],
    ]) {
      await rpc("anvil_mine", [blocks]);
      await says(page, ".timeline .what", stage);
    }
    await says(page, ".timeline [data-event=included]", /block \d+/);
    const story = await page.locator(".timeline li").evaluateAll((all) => all.map((one) => one.dataset.event));
    assert.deepEqual(story, STORY);
    // Its bodies are gone; what answered it is read from the chain.
    await says(page, ".note", "a store keeps them only while a request is live");
    await says(page, ".card", "respond(uint256,bytes32,bytes)");
    await says(page, ".card pre.json", ANSWER);
    // It is found by the transaction that asked for it.
    await asking.click();
    await says(page, "h2", "It asks for");
    await says(page, `tbody a[href="#/requests/${id}"]`, id.slice(0, 6));
    await says(page, "tbody .badge", "settled");
    await go(page, "#/listeners", "Listeners");
    await says(page, ".card", "board@dev");
    await says(page, ".card .status", "following");
    await says(page, ".facts", "at the head");
    // One node answers, and the one behind it was never needed: nothing is known of it.
    await says(page, ".nodes li.good", "answers");
    await says(page, ".nodes li.idle", "not asked yet");
    await atOnce(page);
    await accounts(page);
    await nodes(page);
  },
  { token: null },
);
