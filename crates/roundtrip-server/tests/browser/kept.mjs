// Answers that are kept for whoever asks are shown as what they are: done, and nobody's backlog.

import { assert, browse, call, go, says } from "./browser.mjs";

await browse(async (page) => {
  const kept = (await call("/v1/counts")).counts.find((one) => one.route === "lookups");
  assert.equal(kept.state, "ready");
  await go(page, "#/", "Overview");
  const station = (name) => page.locator(".station", { hasText: name });
  await says(page, ".station.end", `${kept.requests} kept for whoever asks`);
  const waiting = (await call("/v1/counts")).counts.filter((one) => ["waiting", "ready"].includes(one.state) && one.route !== "lookups");
  const backlog = waiting.reduce((sum, one) => sum + one.requests, 0);
  assert.equal(await station("Outbox").locator(".figure").textContent(), String(backlog));
  assert.equal(await page.locator(".station.bottleneck .name").textContent(), "Inbox", "the oldest of all are the kept ones");

  // The same numbers make a bottleneck of answers that are to be sent, and none of kept ones.
  const verdict = await page.evaluate(async () => {
    const { stations, told } = await import("/dashboard/pages/flow.js");
    const routes = [
      { name: "asked for", delivery: "keep" },
      { name: "sent", delivery: "webhook" },
    ];
    const late = (route) => {
      const counts = [{ route, state: "ready", requests: 500, oldest_at_ms: Date.now() - 3_600_000 }];
      return stations(told(counts, routes), { sent: 0 })
        .filter((one) => one.bottleneck)
        .map((one) => one.name);
    };
    return routes.map((route) => late(route.name));
  });
  assert.deepEqual(verdict, [[], ["Outbox"]]);

  // Everywhere else they go by the same name.
  await go(page, "#/requests?route=lookups", "Requests");
  await says(page, "tbody .badge", "kept");
  await go(page, "#/routes/lookups", "lookups");
  await says(page, "tbody .badge", "kept");
  await says(page, ".facts", "caller: kept for whoever asks");
  await go(page, "#/queues/lookups/completed", "lookups");
  await says(page, ".jobs .badge", "kept");
  await go(page, "#/queues/lookups/answered", "lookups");
  await says(page, ".empty", "No answer is on its way");
});
