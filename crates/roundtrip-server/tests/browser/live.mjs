// What happens is shown without a reload, and goes on being shown after the server was away.

import { BASE, OPERATOR, ask, assert, browse, call, confirmed, go, judge, says, submit, work } from "./browser.mjs";

await browse(async (page) => {
  page.expected = ["ERR_", "503"];
  await says(page, "h1", "Overview");
  await says(page, ".connection", "Live");
  await page.evaluate(() => {
    window.same = true;
  });

  // An empty store says what to do next.
  await go(page, "#/requests", "Requests");
  await says(page, ".empty", "No request is live");
  await says(page, ".empty pre", "curl -X POST");

  // A request appears, is worked on, and moves.
  const id = await submit("square", { n: 7 });
  await says(page, `a[href="#/requests/${id}"]`, id.slice(0, 6));
  await go(page, `#/requests/${id}`, id.slice(0, 6));
  await says(page, ".head .badge", "queued");
  await work("square", { square: 49 });
  await says(page, ".head .badge", "kept");
  await says(page, ".timeline", "Answered");
  await says(page, "pre.json", "49");

  // A body keeps its digits, which reading it would lose.
  const exact = '{"n":12345678901234567890123,"f":1.10,"s":"a \\"{1}\\", b","none":{},"list":[1e5,[]]}';
  const headers = { "content-type": "application/json", authorization: `Bearer ${OPERATOR}` };
  const told = await (await fetch(`${BASE}/v1/routes/cube/requests`, { method: "POST", headers, body: exact })).json();
  const plain = { a: [1, { b: [] }], c: {}, d: 'x",{', e: null };
  const same = await page.evaluate(async (plain) => {
    const { indented, members } = await import("/dashboard/words.js");
    return [indented(JSON.stringify(plain)), members(JSON.stringify(plain))];
  }, plain);
  assert.equal(same[0], JSON.stringify(plain, null, 2));
  assert.deepEqual(same[1], { a: '[1,{"b":[]}]', c: "{}", d: '"x\\",{"', e: "null" });
  await go(page, `#/requests/${told.id}`, told.id.slice(0, 6));
  await says(page, "pre.json", '"n": 12345678901234567890123,\n  "f": 1.10,');
  const whole = await page.locator("pre.json").textContent();
  assert.equal(whole.replace(/\n */g, "").replace(/": /g, '":'), exact);
  await go(page, "#/queues/cube/waiting", "cube");
  await page.locator(".jobs summary").first().click();
  await says(page, ".jobs pre.json", "12345678901234567890123");
  await work("cube", { cube: 1 });

  // The server goes, and comes back at the same place; nobody reloads.
  await go(page, "#/", "Overview");
  await ask("stop");
  await says(page, ".connection", "Reconnecting");
  await says(page, ".away", "The server does not answer");
  assert.ok(await page.locator(".flow").isVisible(), "what was shown stays");
  await judge(page, "a server that is away");
  await ask("start");
  await says(page, ".connection", "Live");
  await page.locator(".away").waitFor({ state: "hidden" });
  await submit("cube", { n: 2 });
  await work("cube", { error: "cubes are too hard" });
  await says(page, ".attention", "1 dead letter");
  await says(page, ".bubble", "1");

  // Whoever drops it sees that it is gone: there is nothing left to press.
  const [dead] = (await call("/v1/requests?state=dead")).requests;
  await go(page, `#/requests/${dead.id}`, dead.id.slice(0, 6));
  await confirmed(page, "Drop", "Drop it");
  await says(page, ".head .badge", "dropped");
  await says(page, ".timeline li:last-child", "Dropped");
  assert.equal(await page.locator(".head button").count(), 0, "what has ended is not mended");

  // A page that nobody looks at lets its connection go, and knows all once it is looked at again.
  await go(page, "#/requests", "Requests");
  const turn = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  const cut = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/v1/updates"));
  await turn(true);
  await cut;
  const unseen = await submit("square", { n: 8 });
  await turn(false);
  await says(page, `a[href="#/requests/${unseen}"]`, unseen.slice(0, 6));
  assert.equal(await page.evaluate(() => window.same), true, "the page was not reloaded");
});
