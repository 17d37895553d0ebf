// Whatever needs a person has the button that mends it, or says what does; what lists tell is not told twice.

import { VIEWER, assert, browse, call, go, logIn, says } from "./browser.mjs";

const item = (page, text) => page.locator(".attention li", { hasText: text });

await browse(async (page, open) => {
  page.expected = ["503"];
  // Every kind of finding, as the API names them, is an item with a button, or told by a list.
  const { components } = await call("/v1/openapi.json");
  const kinds = components.schemas.Kind.enum ?? components.schemas.Kind.oneOf.flatMap((one) => one.enum ?? one.const);
  assert.ok(kinds.length > 25, `${kinds.length} kinds`);
  await go(page, "#/", "Overview");
  const shown = await page.evaluate(async (kinds) => {
    const { doctors } = await import("/dashboard/pages/attention.js");
    const findings = kinds.map((kind) => ({ kind, level: "look", name: "a", about: `thing ${kind}`, found: "it is so", to_do: "do it" }));
    const told = (found, lanes) =>
      doctors({ findings: found }, lanes, () => {}).map((one) => [one.key.split(" ")[1], one.button?.textContent ?? "no button"]);
    const silent = { ...findings.find((one) => one.kind === "node_silent"), level: "bad" };
    const low = findings.filter((one) => one.kind === "balance_low");
    return {
      all: Object.fromEntries(told(findings, [])),
      quiet: told([...findings.filter((one) => ["balance_unknown", "node_poor"].includes(one.kind)), silent], []),
      once: told(low, [{ name: "a", status: "unfunded" }]),
    };
  }, kinds);
  const LISTED = ["route_full", "route_paused", "dead_letters", "lane_paused", "lane_quarantined", "lane_unfunded", "lane_stopped", "fee_cap"];
  const READ = ["listener_halted", "listener_waits", "listener_behind", "listener_old"];
  const expected = kinds.filter((kind) => !["well", ...LISTED, ...READ].includes(kind));
  assert.deepEqual(Object.keys(shown.all).sort(), [...expected].sort());
  for (const [kind, button] of Object.entries(shown.all)) assert.equal(button, kind === "balance_low" ? "Fund it" : "What to do", kind);
  assert.deepEqual(shown.quiet, [["node_silent", "What to do"]], "where no node answers, that is the news");
  assert.deepEqual(shown.once, [], "a lane that cannot pay says so itself");

  // Every item of the real ones has a button, too.
  await item(page, "does not answer").waitFor();
  const bare = await page.locator(".attention li:not(:has(button, a.button))").allTextContents();
  assert.deepEqual(bare, []);

  // A node that is away: what to do, where it shows, and whether it is back.
  await item(page, "node http://127.0.0.1:9").getByRole("button", { name: "What to do" }).click();
  await says(page, "dialog", "give the chain another URL");
  await page.getByRole("button", { name: "Look again" }).click();
  await says(page, "dialog [role=alert]", "It is still so");
  await page.locator("dialog").getByRole("link", { name: "Listeners" }).click();
  await says(page, "h1", "Listeners");
  assert.equal(await page.locator("dialog").count(), 0, "whoever follows a way out is out");

  // A lane that cannot pay: where to send funds; a viewer may look, an operator lets it go on.
  const viewer = await open();
  await logIn(viewer, VIEWER);
  await item(viewer, "cannot pay").getByRole("button", { name: "Fund it" }).click();
  await says(viewer, "dialog .facts", "Send to");
  assert.deepEqual(await viewer.locator("dialog .dialog-actions button").allTextContents(), ["Close", "Look again"]);
  await go(page, "#/", "Overview");
  await item(page, "cannot pay").getByRole("button", { name: "Fund it" }).click();
  await says(page, "dialog .note", "insufficient funds");
  await page.getByRole("button", { name: "It is funded: go on" }).click();
  await item(page, "cannot pay").waitFor({ state: "detached" });
  assert.equal((await call("/v1/lanes/east")).status, "active");
});
