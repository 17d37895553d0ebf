// Lanes slot by slot, and what a person does to lanes and routes.

import { assert, browse, call, confirmed, go, needs, says } from "./browser.mjs";

const kinds = (page) => page.locator(".slots .slot").evaluateAll((all) => all.map((one) => [Number(one.dataset.nonce), one.classList[1]]));

await browse(async (page) => {
  // A gap is where the store has passed over slots, and nowhere else.
  const lane = await call("/v1/lanes/north");
  await go(page, "#/lanes/north", "north");
  const drawn = (await kinds(page)).filter(([, kind]) => kind !== "free");
  const first = lane.parcels[0].nonce;
  const wanted = [
    "confirmed",
    "confirmed",
    "confirmed",
    "included",
    "included",
    "included",
    "included",
    "gap",
    "gap",
    "gap",
    "flight",
    "flight",
    "flight",
    "flight",
    "flight",
  ];
  assert.deepEqual(
    drawn,
    wanted.map((kind, n) => [first + n, kind]),
  );
  assert.equal((await kinds(page)).length, wanted.length + 24, "the room that is left is drawn, up to a bound");
  // A slot leads to its attempts, each with what it pays and what it calls.
  await page.locator(`.slot[data-nonce="${first + 10}"]`).click();
  await says(page, "h2", `Slot ${first + 10}`);
  assert.equal(await page.locator(".attempts > li").count(), 2);
  await says(page, ".attempts li:nth-child(1)", "18 gwei");
  await says(page, ".attempts li:nth-child(2)", "19.8 gwei");
  await says(page, ".attempts", "respond(uint256,uint256,bytes)");
  await says(page, ".facts", "sender-oracle-");
  // It is cancelled, by whoever says so twice.
  await confirmed(page, "Cancel", "Cancel it");
  await says(page, ".facts", "to be cancelled");
  assert.deepEqual((await kinds(page))[10], [first + 10, "cancel"]);

  // A lane is paused with a reason, and goes on.
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await page.getByLabel("Why").fill("out for lunch");
  await page.locator("dialog").getByRole("button", { name: "Pause" }).click();
  await says(page, ".note", "out for lunch");
  assert.equal((await call("/v1/lanes/north")).status, "paused");
  await confirmed(page, "Resume");
  await page.locator(".note").waitFor({ state: "detached" });
  assert.equal((await call("/v1/lanes/north")).status, "active");
  await go(page, "#/lanes", "Lanes");
  await says(page, ".card", "key rotation");
  assert.deepEqual(await page.locator(".card h2").allTextContents(), ["east", "north", "south"]);
  assert.equal(await page.locator(".slot.gap").count(), 3 + 1, "three, and one in the legend");

  // A route is resumed where it is told of, and paused on its own page.
  const paused = async (name) => (await call("/v1/routes")).routes.find((route) => route.name === name).paused;
  await go(page, "#/", "Overview");
  const item = needs(page, "reports").filter({ hasText: "paused" });
  // What the doctor finds of this machine may come before it, and put it below the first few.
  await needs(page, "does not answer").waitFor({ state: "attached" });
  await page.evaluate(() => document.querySelectorAll("details.further").forEach((one) => (one.open = true)));
  await item.getByRole("button", { name: "Resume" }).click();
  await page.locator("dialog").getByRole("button", { name: "Resume" }).click();
  await item.waitFor({ state: "detached" });
  assert.equal(await paused("reports"), false);
  await go(page, "#/routes/prices", "prices");
  await says(page, ".facts", "oracle");
  await confirmed(page, "Pause");
  await says(page, ".head .status", "paused");
  assert.equal(await paused("prices"), true);
  await confirmed(page, "Resume");
  await says(page, ".head .status", "running");
  assert.equal(await paused("prices"), false);
  // A dialog that is closed did nothing, and the keyboard is enough.
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await page.keyboard.press("Escape");
  assert.equal(await paused("prices"), false);
  await page.keyboard.press("g");
  await page.keyboard.press("l");
  await says(page, "h1", "Lanes");
});
