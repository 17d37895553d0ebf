// Whatever needs a person has the button that mends it, or says what does; what lists tell is not told twice.

import { VIEWER, assert, browse, call, go, logIn, needs, says } from "./browser.mjs";

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
  const OF_ROUTES = ["route_full", "route_paused", "dead_letters"];
  const OF_LANES = ["lane_paused", "lane_quarantined", "lane_unfunded", "lane_stopped", "fee_cap"];
  const OF_LISTENERS = ["listener_halted", "listener_waits", "listener_behind", "listener_old"];
  const expected = kinds.filter((kind) => !["well", ...OF_ROUTES, ...OF_LANES, ...OF_LISTENERS].includes(kind));
  assert.deepEqual(Object.keys(shown.all).sort(), [...expected].sort());
  for (const [kind, button] of Object.entries(shown.all)) assert.equal(button, kind === "balance_low" ? "Fund it" : "What to do", kind);
  assert.deepEqual(shown.quiet, [["node_silent", "What to do"]], "where no node answers, that is the news");
  assert.deepEqual(shown.once, [], "a lane that cannot pay says so itself");

  const amounts = await page.evaluate(async () => {
    const { amount } = await import("/dashboard/words.js");
    const ether = 10n ** 18n;
    return [0, 7n, ether, ether + 1n, 1234567890n * 10n ** 12n, 12345678n * 10n ** 6n, ether - 1n]
      .map((wei) => amount(wei, "POL"))
      .concat(amount(12341n * 10n ** 9n, "POL", "up"), amount(ether - 1n, "POL", "up"));
  });
  const told = ["0", "0.000000000000000007", "1", "1", "1,234.5678", "0.00001234", "0.9999", "0.00001235", "1"];
  assert.deepEqual(
    amounts,
    told.map((amount) => `${amount} POL`),
  );

  // Every item of the real ones has a button, too.
  await needs(page, "does not answer").waitFor();
  const bare = await page.locator(".attention li:not(:has(button, a.button))").allTextContents();
  assert.deepEqual(bare, []);

  // A node that is away: what to do, where it shows, and whether it is back.
  await needs(page, "node http://127.0.0.1:9").getByRole("button", { name: "What to do" }).click();
  await says(page, "dialog", "give the chain another URL");
  await page.getByRole("button", { name: "Look again" }).click();
  await says(page, "dialog [role=alert]", "It is still so");
  await page.locator("dialog").getByRole("link", { name: "Listeners" }).click();
  await says(page, "h1", "Listeners");
  await page.locator("dialog").waitFor({ state: "detached" });

  // A lane that cannot pay: where to send funds; a viewer may look, an operator lets it go on.
  const viewer = await open();
  await logIn(viewer, VIEWER);
  await needs(viewer, "cannot pay").getByRole("button", { name: "Fund it" }).click();
  await says(viewer, "dialog .facts", "Send to");
  assert.deepEqual(await viewer.locator("dialog .dialog-actions button").allTextContents(), ["Close", "Look again"]);
  await go(page, "#/", "Overview");
  await needs(page, "cannot pay").getByRole("button", { name: "Fund it" }).click();
  await says(page, "dialog .note", "insufficient funds");
  await page.getByRole("button", { name: "It is funded: go on" }).click();
  await needs(page, "cannot pay").waitFor({ state: "detached" });
  assert.equal((await call("/v1/lanes/east")).status, "active");
});
