// Who gets in, what they see, what it weighs.

import { BASE, EXPIRED, OPERATOR, VIEWER, assert, browse, go, says } from "./browser.mjs";

const FIRST_PAINT_BYTES_MAX = 200_000;

await browse(
  async (page, open) => {
    page.expected = ["401"];
    // Nobody gets in without a token, and is told how to come by one.
    await page.goto(BASE);
    await says(page, "h1", "Log in");
    await says(page, "pre", "roundtrip token");
    await page.getByLabel("Token").fill("nonsense");
    await page.getByRole("button", { name: "Log in" }).click();
    await says(page, "[role=alert]", "not accepted");
    // An old link says that it is old.
    await page.goto(`${BASE}/#token=${EXPIRED}`);
    await says(page, "[role=alert]", "Your token expired");
    // A good one logs in, and does not stay in the address.
    await page.getByLabel("Token").fill(OPERATOR);
    await page.getByRole("button", { name: "Log in" }).click();
    await says(page, "h1", "Overview");
    await page.getByRole("button", { name: "Log out" }).click();
    await says(page, "[role=alert]", "You are logged out");
    await page.goto(`${BASE}/#token=${OPERATOR}`);
    await says(page, "h1", "Overview");
    assert.ok(!page.url().includes(OPERATOR), page.url());
    assert.ok((await page.locator(".attention button").count()) > 0, "an operator has buttons");
    await says(page, ".connection", "Live");
    // A token that is not taken any longer ends the session, whatever page is open.
    await page.evaluate((token) => localStorage.setItem("roundtrip-token", token), EXPIRED);
    await page.getByRole("link", { name: "Lanes" }).click();
    await says(page, "[role=alert]", "Your token expired");

    // A viewer sees the same, and has nothing to press.
    const viewer = await open();
    await viewer.goto(`${BASE}/#token=${VIEWER}`);
    await says(viewer, "h1", "Overview");
    await says(viewer, ".attention", "dead letter");
    const wanted = ["Resume", "Pause", "Retry", "Drop", "Cancel", "Rebuild", "Reconcile", "Retry all", "Drop all", "Pause queue"];
    for (const [hash, title] of [
      ["#/", "Overview"],
      ["#/dead", "Dead letters"],
      ["#/routes/reports", "reports"],
      ["#/routes/prices", "prices"],
      ["#/lanes/north", "north"],
      ["#/lanes/south", "south"],
      ["#/queues/thumbnails/failed", "thumbnails"],
    ]) {
      await go(viewer, hash, title);
      for (const name of wanted) assert.equal(await viewer.getByRole("button", { name, exact: true }).count(), 0, `${hash} has ${name}`);
    }

    // The first paint, on a browser that has nothing: every byte of every file, as it goes over the wire.
    const fresh = await open();
    await fresh.goto(`${BASE}/#token=${VIEWER}`);
    await fresh.locator(".chart canvas").nth(1).waitFor();
    await fresh.evaluate(() => new Promise((then) => requestAnimationFrame(then)));
    const weight = await fresh.evaluate(() =>
      [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")].reduce(
        (sum, one) => sum + one.transferSize,
        0,
      ),
    );
    console.log(`first paint: ${weight} bytes`);
    assert.ok(weight > 50_000 && weight < FIRST_PAINT_BYTES_MAX, `${weight} bytes`);

    // What may be cached is asked about, and not sent again.
    const file = await fetch(`${BASE}/dashboard/app.js`);
    const again = await fetch(`${BASE}/dashboard/app.js`, { headers: { "if-none-match": file.headers.get("etag") } });
    assert.equal(again.status, 304);
    assert.match(file.headers.get("content-security-policy"), /default-src 'none'/);
  },
  { token: null },
);
