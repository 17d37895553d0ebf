// On a phone every page is a touch or two away, and nothing needs a finger finer than a thumb.

import { BASE, OPERATOR, assert, browse, logIn, says } from "./browser.mjs";

const WIDTHS = [360, 390, 430];
const BAR = ["Overview", "Requests", "Dead letters", "Lanes"];
const TUCKED = ["Routes", "Listeners", "Queues"];
/** The least that a thumb hits. */
const THUMB_PX = 44;

const bar = (page) => page.locator(".links");
const more = (page) => page.getByRole("button", { name: "More", exact: true });
const sheet = (page) => page.locator("#more");

/** Whether an element is all on the screen, and large enough. */
async function inReach(page, element, name, width) {
  const box = await element.boundingBox();
  assert.ok(box && box.x >= 0 && box.x + box.width <= width, `${name} is cut at ${width} px`);
  assert.ok(box.height >= THUMB_PX && box.width >= THUMB_PX, `${name} is ${box.width} by ${box.height} px`);
}

await browse(
  async (_, open) => {
    for (const width of WIDTHS) {
      const page = await open({ viewport: { width, height: 740 }, hasTouch: true, isMobile: true });
      page.expected = ["401"];
      await logIn(page, OPERATOR);
      for (const name of BAR) {
        const link = bar(page).getByRole("link", { name });
        await inReach(page, link, name, width);
        await link.tap();
        await says(page, "main h1", name);
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, name);
      }
      for (const name of TUCKED) {
        await inReach(page, more(page), "More", width);
        await more(page).tap();
        const link = sheet(page).getByRole("link", { name });
        await inReach(page, link, name, width);
        await link.tap();
        await says(page, "main h1", name);
        await sheet(page).waitFor({ state: "hidden" });
      }
      // What needs a person is read to its end.
      const unread = await page.evaluate(async () => {
        const { list } = await import("/dashboard/pages/attention.js");
        const shown = list([{ level: "bad", key: "long", text: "the encoder answered 500 after 1200 ms, and ".repeat(9) }]);
        document.querySelector("main").append(shown);
        const text = shown.querySelector(".text");
        const hidden = text.scrollHeight - text.clientHeight;
        shown.remove();
        return hidden;
      });
      assert.equal(unread, 0, "px of an item are cut");
      // Where one is shows, also in the bar.
      assert.match(await more(page).getAttribute("class"), /here/);
      // What is open closes at a touch beside it.
      await more(page).tap();
      await sheet(page).waitFor();
      await page.touchscreen.tap(width / 2, 120);
      await sheet(page).waitFor({ state: "hidden" });

      // By keyboard: opened, gone through, closed, and back where it was.
      await more(page).focus();
      await page.keyboard.press("Enter");
      await sheet(page).waitFor();
      await page.keyboard.press("Escape");
      await sheet(page).waitFor({ state: "hidden" });
      assert.equal(await page.evaluate(() => document.activeElement.textContent), "More");
      await page.keyboard.press("Enter");
      const focused = () => page.evaluate(() => document.activeElement.textContent);
      for (let n = 0; n < 12 && (await focused()) !== "Listeners"; n += 1) await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
      await says(page, "main h1", "Listeners");
      // Who is logged in can leave.
      await more(page).tap();
      await sheet(page).getByRole("button", { name: "Log out" }).tap();
      await says(page, "h1", "Log in");
      await page.goto(BASE);
    }
  },
  { token: null },
);
