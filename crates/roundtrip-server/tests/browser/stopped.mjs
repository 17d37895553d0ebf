// Lanes whose accounts somebody else used are stopped; each goes on by the button that whoever looks presses twice.

import { BASE, assert, browse, call, go, needs, rpc, says } from "./browser.mjs";

const lane = (name) => call(`/v1/lanes/${name}`, undefined, null);

/** Has somebody else send from a lane's account, and goes to its page, which shows that it is stopped. */
async function stop(page, name) {
  const { accounts } = await call("/v1/doctor", undefined, null);
  const account = accounts.find((one) => one.lane === name).address;
  await rpc("eth_sendTransaction", [{ from: account, to: account }]);
  await go(page, `#/lanes/${name}`, name);
  await says(page, ".head .status", "stopped");
  return account;
}

const press = (page, button) => page.getByRole("button", { name: button, exact: true }).first().click();
const meant = (page, button) => page.locator("dialog").getByRole("button", { name: button, exact: true }).click();

await browse(
  async (page) => {
    await page.goto(BASE);
    await says(page, "h1", "Overview");
    await go(page, "#/lanes", "Lanes");
    await says(page, ".card", "b");
    await stop(page, "a");
    // What needs a person leads to where it is mended.
    await go(page, "#/", "Overview");
    await needs(page, "is stopped").getByRole("link", { name: "Rebuild" }).click();
    await says(page, "main h1", "a");
    // Whoever does not mean it changes nothing.
    await press(page, "Rebuild");
    await says(page, "dialog", "nothing goes out twice");
    await meant(page, "Not now");
    assert.equal((await lane("a")).status, "stopped");
    // What the store does not know is looked at; nothing of ours is among it.
    await press(page, "Rebuild");
    await page.getByLabel("Wait for answers that are made again, in seconds").fill("5");
    await meant(page, "Rebuild");
    await says(page, ".toast", "1 unknown transaction: 0 done, 0 failed, 1 of others, 0 unanswered");
    await says(page, ".head .status", "active");
    assert.equal((await lane("a")).status, "active");

    // Whoever has matched by hand says where the lane goes on.
    const account = await stop(page, "b");
    await press(page, "Reconcile");
    await says(page, "dialog", "whatever was not is sent again");
    await meant(page, "Not now");
    assert.equal((await lane("b")).status, "stopped");
    const next = Number(await rpc("eth_getTransactionCount", [account, "latest"]));
    await press(page, "Reconcile");
    await page.getByLabel("The next slot that is free on the chain").fill(String(next));
    await meant(page, "Reconcile");
    await says(page, ".toast", "b goes on at slot");
    await says(page, ".head .status", "active");
    const mended = await lane("b");
    assert.deepEqual([mended.status, mended.next], ["active", next]);
  },
  { token: null },
);
