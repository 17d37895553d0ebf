// Ten thousand requests: pages come at once, and the browser stays quick while all of them move.

import { assert, browse, call, go, says, submit } from "./browser.mjs";

const ALL = 10_000;
const BATCH = 500;
/** How often a page that follows may ask for its data anew; not once for each of them. */
const ASKS_PER_S_MAX = 12;
/** Most elements of a page, however many requests there are. */
const ELEMENTS_MAX = 15_000;

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
  let asked = 0;
  page.on("request", (one) => (asked += Number(one.url().includes("/v1/"))));
  const flooded = Date.now();
  for (const requests of batches) await call("/v1/routes/square/requests/bulk", { requests });
  await page.locator("tbody tr").nth(99).waitFor();
  const often = asked / Math.max(1, (Date.now() - flooded) / 1000);
  for (let shown = 200; shown <= 500; shown += 100) {
    await page.getByRole("button", { name: "Show more" }).click();
    await page
      .locator("tbody tr")
      .nth(shown - 1)
      .waitFor();
  }
  await says(page, ".more", "500 shown");
  // What came with "Show more" is brought up to date like the rest.
  const late = (await page.locator("tbody tr").nth(450).locator("a").first().getAttribute("href")).split("/").pop();
  await call(`/v1/requests/${late}/cancel`, {});
  await page.locator(`a[href="#/requests/${late}"]`).waitFor({ state: "detached" });
  await submit("square", { n: ALL });
  await says(page, ".more", "500 shown");
  const elements = await page.evaluate(() => document.querySelectorAll("*").length);
  const began = Date.now();
  await go(page, "#/", "Overview");
  await says(page, ".station .figure", "10.0k");
  await go(page, "#/requests?state=queued", "Requests");
  await page.locator("tbody tr").nth(99).waitFor();
  const took = Date.now() - began;
  const longest = await page.evaluate(() => window.longest);
  // How long it takes is the machine's; how much there is to do is the page's.
  console.log(`two pages in ${took} ms, frozen for ${longest} ms at the most; ${often.toFixed(1)} calls/s, ${elements} elements`);
  assert.ok(often < ASKS_PER_S_MAX, `${often} calls a second`);
  assert.ok(elements < ELEMENTS_MAX, `${elements} elements`);
});
