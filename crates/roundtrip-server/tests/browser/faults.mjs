// What cannot be shown says what happened and what to do next, and looks like the rest.

import { BASE, OPERATOR, SUBMITTER, assert, browse, go, logIn, says } from "./browser.mjs";

const NOBODY = "ab".repeat(32);

await browse(
  async (page, open) => {
    page.expected = ["404", "422", "503", "ERR_FAILED", "403"];
    // A token that may do something, and not look, is told which one may.
    await page.goto(`${BASE}/#token=${SUBMITTER}`);
    await says(page, "h1", "You may not look");
    await says(page, ".fault", "with the role submitter");
    await says(page, ".fault pre", "--role viewer");
    await page.getByRole("button", { name: "Log in as somebody else" }).click();
    await says(page, "h1", "Log in");
    await logIn(page, OPERATOR);

    // Whatever is not here leads on.
    const leads = async (hash, title, next, arrives) => {
      await go(page, hash, title);
      assert.equal(await page.locator("main h1").count(), 1, hash);
      await page.locator(".fault").getByRole("link", { name: next, exact: true }).click();
      await says(page, "main h1", arrives);
    };
    await leads("#/nothing", "There is no page here", "Overview", "Overview");
    await leads("#/requests/%", "There is no page here", "Overview", "Overview");
    await leads("#/requests?state=foo", "This cannot be looked for", "Look for everything", "Requests");
    await leads("#/constructor", "There is no page here", "Requests", "Requests");
    await leads(`#/requests/${NOBODY}`, "No such request is here", "All requests", "Requests");
    await leads("#/requests/abcd", "This is no id of a request", "Search for it", "Requests");
    await leads("#/lanes/west", "No lane is called “west”", "All lanes", "Lanes");
    await leads("#/routes/west", "No route is called “west”", "All routes", "Routes");
    await leads("#/queues/west", "No queue is called “west”", "All queues", "Queues");
    // An id that nobody has may be that of a transaction: it is looked for.
    await go(page, `#/requests/${NOBODY}`, "No such request is here");
    await page.getByRole("link", { name: "Look for a transaction" }).click();
    await says(page, "[role=alert]", "Nothing is known by this hash");

    // A path that has nothing is a page for a browser, and a problem for a program.
    const shown = await page.goto(`${BASE}/nothing/here`);
    assert.equal(shown.status(), 404);
    await says(page, "main h1", "There is no page here");
    await page.getByRole("link", { name: "Overview", exact: true }).last().click();
    await says(page, "main h1", "Overview");
    const told = await fetch(`${BASE}/nothing/here`);
    assert.equal(told.headers.get("content-type"), "application/problem+json");

    // A server that is away at the start is waited for.
    const waiting = await open();
    waiting.expected = ["ERR_FAILED"];
    await waiting.route("**/v1/me", (route) => route.abort());
    await waiting.goto(`${BASE}/#token=${OPERATOR}`);
    await says(waiting, "h1", "The server does not answer");
    await waiting.unroute("**/v1/me");
    await says(waiting, "h1", "Overview");
    // So is one whose store is away; what one page cannot show is tried again by itself.
    const busy = (route) =>
      route.fulfill({ status: 503, json: { title: "Service Unavailable", status: 503, detail: "the store does not answer" } });
    await page.route("**/v1/lanes", busy);
    await page.goto(`${BASE}/#/lanes`);
    await says(page, "h1", "The store does not answer");
    await says(page, ".fault", "nothing is lost");
    await page.unroute("**/v1/lanes");
    await says(page, "h1", "Lanes");
  },
  { token: null },
);
