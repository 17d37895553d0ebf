// Ten thousand requests: however many there are, a page asks for little, makes few elements at a time, and leaves
// alone what has not changed. How long that takes is the machine's; how much there is to do is the page's.

import { assert, browse, call, go, says, submit } from "./browser.mjs";

const ALL = 10_000;
const BATCH = 500;
/** How often a page that follows may ask for its data anew; not once for each of them. */
const ASKS_PER_S_MAX = 12;
/** Most elements of a page, however many requests there are. */
const ELEMENTS_MAX = 15_000;
/** Most elements that are made for each row that is shown, and for the rest of a page. */
const ROW_ELEMENTS_MAX = 20;
const REST_ELEMENTS_MAX = 1000;

/** Counts the elements that are made before the browser has its turn again: so long nobody can scroll or press. */
const count = () => {
  window.made = { now: 0, most: 0 };
  for (const name of ["createElement", "createElementNS"]) {
    const make = document[name].bind(document);
    document[name] = (...given) => {
      if (window.made.now === 0) setTimeout(() => (window.made.now = 0));
      window.made.now += 1;
      window.made.most = Math.max(window.made.most, window.made.now);
      return make(...given);
    };
  }
};
/** The most that were made at a time since the last look. */
const most = (page) =>
  page.evaluate(() => {
    const { most } = window.made;
    window.made.most = 0;
    return most;
  });
const bounded = (made, rows) => {
  assert.ok(made > rows, `${made} elements were counted`);
  assert.ok(made < rows * ROW_ELEMENTS_MAX + REST_ELEMENTS_MAX, `${made} elements at a time for ${rows} rows`);
};

await browse(async (page) => {
  await says(page, ".connection", "Live");
  await page.evaluate(count);
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
  const flood = await most(page);
  bounded(flood, 100);
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
  // Rows that have not changed are not made anew.
  await page.evaluate(() => document.querySelectorAll("tbody tr").forEach((row) => (row.known = true)));
  await call(`/v1/requests/${late}/cancel`, {});
  await page.locator(`a[href="#/requests/${late}"]`).waitFor({ state: "detached" });
  await submit("square", { n: ALL });
  await says(page, ".more", "500 shown");
  const fresh = await page.evaluate(() => [...document.querySelectorAll("tbody tr")].filter((row) => !row.known).length);
  assert.equal(fresh, 1, "the one that took the place of another");
  const many = await most(page);
  bounded(many, 500);
  const elements = await page.evaluate(() => document.querySelectorAll("*").length);
  await go(page, "#/", "Overview");
  await says(page, ".station .figure", "10.0k");
  await go(page, "#/requests?state=queued", "Requests");
  await page.locator("tbody tr").nth(99).waitFor();
  console.log(`${often.toFixed(1)} calls/s, ${elements} elements, ${flood} at a time for 100 rows, ${many} for 500`);
  assert.ok(often < ASKS_PER_S_MAX, `${often} calls a second`);
  assert.ok(elements < ELEMENTS_MAX, `${elements} elements`);
});
