// Ten thousand requests: pages come at once, and the browser stays quick while all of them move.

import { assert, browse, call, go, says } from "./browser.mjs";

const ALL = 10_000;
const BATCH = 500;
/** Longest time that the page may not react, on a machine that others use too. */
const FROZEN_MS_MAX = 400;
const SHOWN_MS_MAX = 2_000;

await browse(async (page) => {
  await says(page, ".connection", "Live");
  await page.evaluate(() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
      for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration);
    }).observe({ entryTypes: ["longtask"] });
  });
  await go(page, "#/requests", "Requests");
  // All of them come in, with the page open and following.
  const batches = Array.from({ length: ALL / BATCH }, (_, n) =>
    Array.from({ length: BATCH }, (_, at) => ({ payload: { n: n * BATCH + at } })),
  );
  for (const requests of batches) await call("/v1/routes/square/requests/bulk", { requests });
  await page.locator("tbody tr").nth(99).waitFor();
  for (let shown = 200; shown <= 500; shown += 100) {
    await page.getByRole("button", { name: "Show more" }).click();
    await page
      .locator("tbody tr")
      .nth(shown - 1)
      .waitFor();
  }
  await says(page, ".more", "500 shown");
  const began = Date.now();
  await go(page, "#/", "Overview");
  await says(page, ".station .figure", "10.0k");
  await go(page, "#/requests?state=queued", "Requests");
  await page.locator("tbody tr").nth(99).waitFor();
  const took = Date.now() - began;
  const longest = await page.evaluate(() => window.longest);
  console.log(`two pages in ${took} ms, frozen for ${longest} ms at the most`);
  assert.ok(took < SHOWN_MS_MAX, `${took} ms`);
  assert.ok(longest < FROZEN_MS_MAX, `frozen for ${longest} ms`);
});
