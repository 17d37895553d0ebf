// An answer that a webhook does not take says why on its page, and that it is tried again.

import { assert, browse, call, go, says, submit, work } from "./browser.mjs";

await browse(async (page) => {
  const id = await submit("told", { n: 1 });
  await go(page, `#/requests/${id}`, id.slice(0, 6));
  await work("told", { n: 2 });
  await says(page, ".head .badge", "ready");
  await says(page, ".note", "Its answer is not taken where it is wanted");
  await says(page, ".note", "503");
  // How often, and when again: who delivers it knows.
  await says(page, ".note", /Tried \d+ times? in vain, last .* ago; it is tried again in [\d.]+ s/);
  await says(page, ".timeline [data-event=undelivered]", "Not taken");
  await says(page, ".timeline [data-event=undelivered]", "503");
  const { requests } = await call("/v1/requests?error=503");
  assert.deepEqual(
    requests.map((one) => one.id),
    [id],
    "it is found by why it waits",
  );
});
