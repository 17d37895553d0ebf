// Requests are found by whatever somebody knows of them; dead letters are retried, one and many.

import { BASE, DEAD, OPERATOR, SETTLED, TRANSACTION, assert, browse, call, confirmed, go, says } from "./browser.mjs";

/** Waits until a table has so many rows. */
const rows = (page, count) => page.waitForFunction((count) => document.querySelectorAll("tbody tr").length === count, count);
const dead = async (route) => (await call(`/v1/requests?state=dead&route=${route}&limit=1000`)).requests;

await browse(async (page) => {
  page.expected = ["404", "503"];
  const search = async (text) => {
    await go(page, "#/requests", "Requests");
    await page.keyboard.press("/");
    await page.locator("#search").fill(text);
    await page.keyboard.press("Enter");
  };
  // By id, also of what has ended: its whole story.
  await search(SETTLED);
  await says(page, "main h1", SETTLED.slice(0, 6));
  const story = await page.locator(".timeline li").evaluateAll((all) => all.map((one) => one.dataset.event));
  assert.deepEqual(story, ["admitted", "leased", "answered", "finalized", "assigned", "included", "confirmed", "ended"]);
  await says(page, ".timeline", "by pricer-");
  await says(page, ".timeline", TRANSACTION.slice(0, 8));
  await says(page, ".timeline [data-event=assigned]", /slot \d+: 0x[0-9a-f]+….* for at most 18 gwei/);
  await says(page, ".facts", "Trace");
  // Its bodies are gone, and that is said.
  await says(page, ".note", "a store keeps them only while a request is live");
  await says(page, ".card", "its chain does not show it now");
  // By the hash of a transaction.
  await search(TRANSACTION);
  await says(page, "h2", "It answers");
  await page.locator(`a[href="#/requests/${SETTLED}"]`).waitFor();
  // By the beginning of an id, a route, a state, and words of an error.
  for (const part of [DEAD.slice(0, 9), DEAD.slice(0, 8).toUpperCase(), `0x${DEAD.slice(0, 7)}`, `${DEAD.slice(0, 6)}…${DEAD.slice(-4)}`]) {
    await search(part);
    await rows(page, 1);
    await page.locator(`tbody a[href="#/requests/${DEAD}"]`).waitFor();
  }
  // Letters alone may begin an id, and three digits; digits may as well be of an error, or in quotes nothing else.
  const meanings = await page.evaluate(async () => {
    const { meaning } = await import("/dashboard/pages/requests.js");
    return ["efce", "2d8", "5501", '"5501"', "2d8e…cff9", "no such image", "0x2D"].map(meaning);
  });
  const either = (begins) => ({ begins, ends: "", error: begins });
  assert.deepEqual(meanings, [
    ...["efce", "2d8", "5501"].map(either),
    { error: "5501" },
    { begins: "2d8e", ends: "cff9" },
    { error: "no such image" },
    { error: "0x2D" },
  ]);
  const letters = (await call("/v1/requests?limit=1000")).requests.map((one) => one.id).find((id) => /^[a-f]{3}/.test(id));
  await search(letters.slice(0, 3));
  await page.locator(`tbody a[href="#/requests/${letters}"]`).waitFor();
  const numbers = (await dead("thumbnails")).map((one) => / \d{3,} ms/.exec(one.error.text)?.[0].slice(1, -3)).find(Boolean);
  await search(numbers);
  await says(page, "tbody .error-text", numbers);
  await search("no such image");
  await says(page, "tbody .error-text", "no such image");
  await rows(page, 4);
  await page.getByLabel("Route").selectOption("prices");
  await says(page, ".empty", "No live request fits");
  // What is typed stays when something is chosen.
  await go(page, "#/requests", "Requests");
  await page.locator("#search").fill("no such image");
  await page.getByLabel("State").selectOption("dead");
  await rows(page, 4);
  assert.equal(await page.locator("#search").inputValue(), "no such image");
  // The beginning of an id finds what has ended where one looks for it, and says so.
  await search(SETTLED.slice(0, 9));
  await says(page, "h2", "Found among those that ended");
  await page.locator(`tbody a[href="#/requests/${SETTLED}"]`).waitFor();
  await says(page, "tbody .badge", "settled");
  // And beside live ones that begin alike.
  const first = (await call("/v1/requests?limit=1000")).requests.map((one) => one.id.slice(0, 3));
  const both = (await call("/v1/ended?limit=1000")).requests.map((one) => one.id).find((id) => first.includes(id.slice(0, 3)));
  await search(both.slice(0, 3));
  await says(page, "h2", "Ended lately");
  await page.locator(`tbody a[href="#/requests/${both}"]`).waitFor();
  // What has ended is searched alone, too.
  await go(page, "#/requests", "Requests");
  await page.locator("#search").fill(SETTLED.slice(0, 7));
  await page.getByLabel("State").selectOption("ended");
  await rows(page, 1);
  await says(page, "tbody .badge", "settled");
  await page.locator("#search").fill("no such image");
  await page.keyboard.press("Enter");
  await says(page, ".empty", "Nothing that ended lately fits");
  await go(page, "#/requests?state=leased&route=prices", "Requests");
  await says(page, "tbody", "with pricer-1");
  await search("ab".repeat(32));
  // Whether it asks for anything only its chain can tell, which is away.
  await says(page, "[role=alert]", "This cannot be told now");
  await says(page, "[role=alert]", "base");
  await page.getByLabel("State").selectOption("ended");
  await page.goto(page.url().replace(/q=[^&]*&?/, ""));
  await says(page, "tbody .badge", "settled");

  // A page of one that is under way: what was asked, its bytes, its trace, its answer as a call.
  const [sent] = (await call("/v1/requests?state=assigned&route=prices")).requests;
  await go(page, `#/requests/${sent.id}`, sent.id.slice(0, 6));
  const asked = await (await fetch(`${BASE}/v1/requests/${sent.id}/payload`, { headers: { authorization: `Bearer ${OPERATOR}` } })).json();
  const shown = await page.locator("pre.json").first().textContent();
  assert.equal(shown, JSON.stringify(asked, null, 2));
  assert.match(asked.args.pair, /^[A-Z]{3}\/[A-Z]{3}$/);
  await says(page, ".facts", "Trace");
  await page.getByRole("button", { name: "Raw bytes" }).first().click();
  await says(page, ".dump", "000000  7b 22");
  await says(page, ".attempts", "respond(uint256,uint256,bytes)");
  await says(page, ".attempts", "gwei");
  // Of each attempt its hash and what it pays, in order; the first of these was made dearer.
  const flying = (await call("/v1/requests?state=assigned&route=prices")).requests;
  const stories = await Promise.all(flying.map((one) => call(`/v1/requests/${one.id}/timeline`)));
  const bumped = stories.findIndex(({ entries }) => entries.some((entry) => entry.event === "attempted"));
  await go(page, `#/requests/${flying[bumped].id}`, flying[bumped].id.slice(0, 6));
  const signed = stories[bumped].entries.slice(-2);
  assert.deepEqual(signed.map(({ event, fee_most, carries }) => [event, fee_most, carries]), [
    ["assigned", "18000000000", true],
    ["attempted", "19800000000", true],
  ]);
  await says(page, ".timeline [data-event=attempted]", "Signed anew");
  await says(page, ".timeline [data-event=attempted]", "for at most 19.8 gwei");
  const { parcels } = await call(`/v1/lanes/${flying[bumped].lane}`);
  assert.deepEqual(
    parcels.find((parcel) => parcel.nonce === flying[bumped].nonce).attempts.map((attempt) => attempt.hash),
    signed.map((entry) => entry.transaction),
  );

  // One dead letter is retried.
  await go(page, `#/requests/${DEAD}`, DEAD.slice(0, 6));
  await says(page, ".trouble", "It could not be answered");
  await confirmed(page, "Retry");
  await says(page, ".head .badge", "queued");
  await says(page, ".timeline", "To be tried again");

  // Many are: those of one cause, after a look at them; then the rest are dropped.
  await go(page, "#/dead?route=thumbnails", "Dead letters");
  const busy = page.locator(".causes li", { hasText: "the encoder answered 503 after … ms" });
  await says(page, ".causes", "23");
  // A cause leaves numbers out; one of its errors has them.
  await says(page, ".causes .error-text", /the encoder answered 503 after 9\d\d ms/);
  await busy.getByRole("button", { name: "Retry" }).click();
  await says(page, "dialog h2", "Retry 23 dead letters?");
  await says(page, "dialog .preview", "23 on thumbnails");
  assert.equal(await page.locator("dialog .examples li", { hasText: /the encoder answered 503 after 9\d\d ms/ }).count(), 5);
  await says(page, "dialog", "and 18 more");
  // The whole list is a step away, and nothing was done.
  await page.getByRole("link", { name: "All dead letters that say “the encoder answered 503 after”" }).click();
  await rows(page, 23);
  await go(page, "#/dead?route=thumbnails", "Dead letters");
  await busy.getByRole("button", { name: "Retry" }).click();
  await page.getByRole("button", { name: "Retry 23" }).click();
  await says(page, ".toast", "23 dead letters to be tried again");
  await busy.waitFor({ state: "detached" });
  assert.deepEqual(
    (await dead("thumbnails")).map((one) => one.error.text.slice(0, 13)),
    Array(3).fill("no such image"),
  );
  await page.getByRole("button", { name: "Drop all" }).click();
  await page.getByRole("button", { name: "Drop 3" }).click();
  await says(page, ".empty", "thumbnails has no dead letters");
  assert.equal((await dead("thumbnails")).length, 0);
  // Those of the other side have their answers.
  await go(page, "#/dead", "Dead letters");
  await says(page, "h2", "Could not be delivered");
  await says(page, ".causes", "StalePrice");
  // A wrong answer is thrown away and worked out anew, for all of a cause, after the same look.
  const wrong = (await dead("prices")).map((one) => one.id);
  const stale = page.locator(".causes li", { hasText: "StalePrice" });
  assert.equal(await page.locator(".causes li", { hasText: "went silent" }).getByRole("button", { name: "Work out anew" }).count(), 0);
  await stale.getByRole("button", { name: "Work out anew" }).click();
  await says(page, "dialog h2", `Work out ${wrong.length} answers anew?`);
  await says(page, "dialog .preview", `${wrong.length} on prices`);
  assert.equal(await page.locator("dialog .examples li", { hasText: "StalePrice" }).count(), wrong.length);
  await page.getByRole("button", { name: `Throw ${wrong.length} answers away` }).click();
  await says(page, ".toast", `${wrong.length} dead letters to be worked out anew`);
  await stale.waitFor({ state: "detached" });
  for (const id of wrong) {
    const mended = await call(`/v1/requests/${id}`);
    assert.deepEqual([mended.state, mended.response], ["queued", undefined]);
  }
  await go(page, `#/requests/${wrong[0]}`, wrong[0].slice(0, 6));
  await says(page, ".timeline", "To be worked out anew");

  // The same by name, as Arena shows it.
  await go(page, "#/queues", "Queues");
  await page.getByRole("link", { name: "thumbnails" }).click();
  await says(page, ".tabs [aria-current]", "waiting");
  await page.locator(".jobs summary").first().click();
  await says(page, ".jobs pre.json", "image");
});
