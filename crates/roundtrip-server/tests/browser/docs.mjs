// The calls, described: only to those who are in, and with their token.

import { BASE, OPERATOR, assert, browse, says } from "./browser.mjs";

await browse(
  async (page) => {
    page.expected = ["401"];
    await page.goto(`${BASE}/docs`);
    await says(page, "h1", "Log in");
    assert.equal(await page.getByText("/v1/requests").count(), 0, "nothing is told to strangers");
    await page.getByRole("link", { name: "Log in" }).click();
    await says(page, "h1", "Log in");
    await page.getByLabel("Token").fill(OPERATOR);
    await page.getByRole("button", { name: "Log in" }).click();
    await says(page, "h1", "Overview");

    await page.goto(`${BASE}/docs`);
    await says(page, ".info .title", "Roundtrip");
    assert.ok((await page.locator(".opblock").count()) > 20, "all calls are there");
    // A call is tried with the token of the login.
    const me = page.locator(".opblock", { has: page.getByText("/v1/me", { exact: true }) });
    await me.locator(".opblock-summary").click();
    const asked = page.waitForResponse((response) => response.url() === `${BASE}/v1/me`);
    await me.getByRole("button", { name: "Execute" }).click();
    const answer = await asked;
    assert.equal(answer.status(), 200);
    await says(me, ".responses-table.live-responses-table", "operator");

    // Whoever logs out in another tab is out here too.
    const other = await page.context().newPage();
    await other.goto(BASE);
    await other.getByRole("button", { name: "Log out" }).click();
    await says(page, "h1", "Log in");
  },
  { token: null },
);
