// A request of a real chain, from the event that asked to the transaction that answered, watched on its own page.

import { BASE, assert, browse, call, go, says } from "./browser.mjs";

const STORY = ["admitted", "finalized", "leased", "answered", "assigned", "included", "confirmed", "ended"];
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
    await page.goto(BASE);
    await says(page, "h1", "Overview");
    const { id } = await poll(async () => (await call("/v1/requests", undefined, null)).requests[0]);
    await go(page, `#/requests/${id}`, id.slice(0, 6));
    await says(page, ".facts", "of dev");
    await says(page, "pre.json", "0x68656c6c6f");
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
    await go(page, "#/listeners", "Listeners");
    await says(page, ".card", "board@dev");
    await says(page, ".card .status", "following");
    await says(page, ".nodes", "answers");
  },
  { token: null },
);
