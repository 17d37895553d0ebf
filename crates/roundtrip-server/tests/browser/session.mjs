// Who gets in, what they see, what it weighs.

import { BASE, EXPIRED, OPERATOR, VIEWER, assert, browse, call, go, logIn, says } from "./browser.mjs";

const FIRST_PAINT_BYTES_MAX = 200_000;

/** The page of a request in each state in which something can be done about it, and of a slot. */
async function pagesOfRequests() {
  const states = ["dead", "queued", "held", "leased", "waiting", "ready"];
  const pages = [];
  for (const state of states) {
    const {
      requests: [found],
    } = await call(`/v1/requests?state=${state}&limit=1`);
    assert.ok(found, `nothing is ${state}`);
    pages.push([`#/requests/${found.id}`, found.id.slice(0, 6)]);
  }
  const {
    requests: [sent],
  } = await call("/v1/requests?state=assigned&limit=1");
  return [...pages, [`#/lanes/${sent.lane}/${sent.nonce}`, sent.lane]];
}

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
    // What is answered late, after somebody has left, brings nothing back.
    const late = [];
    await page.route("**/v1/counts", (route) => late.push(route));
    await page.reload();
    await page.getByRole("button", { name: "Log out" }).click();
    await says(page, "[role=alert]", "You are logged out");
    assert.ok(late.length > 0, "counts were asked for");
    await Promise.all(late.map((route) => route.fulfill({ json: { counts: [] } })));
    await page.unroute("**/v1/counts");
    await page.evaluate(async () => (await fetch("/dashboard/icon.svg")).text());
    assert.equal(await page.locator(".side").count(), 0, "nobody is logged in");
    await page.goto(`${BASE}/#token=${OPERATOR}`);
    await says(page, "h1", "Overview");
    // A token that is not taken any longer ends the session, whatever page is open.
    // The page may find out by itself before anybody goes elsewhere.
    await page.evaluate((token) => {
      localStorage.setItem("roundtrip-token", token);
      location.hash = "#/lanes";
    }, EXPIRED);
    await says(page, "[role=alert]", "Your token expired");

    // A viewer sees the same, and has nothing to press where an operator has.
    await logIn(page, OPERATOR);
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
      ...(await pagesOfRequests()),
    ]) {
      for (const [who, has] of [
        [viewer, 0],
        [page, 1],
      ]) {
        await go(who, hash, title);
        const found = await Promise.all(wanted.map((name) => who.getByRole("button", { name, exact: true }).count()));
        const names = wanted.filter((_, n) => found[n] > 0);
        assert.equal(Math.min(names.length, 1), has, `${hash} has ${names}`);
      }
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
