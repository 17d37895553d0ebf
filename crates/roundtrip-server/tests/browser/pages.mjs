// Every page in light and dark and on a phone: no serious fault by axe, nothing wider than the screen; pictures if wanted.

import { DEAD, SETTLED, SHOTS, assert, axe, browse, call, go, logIn, OPERATOR } from "./browser.mjs";

const rules = axe();
const {
  requests: [sent],
} = await call("/v1/requests?state=assigned&route=prices");
const nonce = sent.nonce;
const PAGES = [
  ["overview", "#/", "Overview"],
  ["requests", "#/requests", "Requests"],
  ["ended", "#/requests?state=ended", "Requests"],
  ["request", `#/requests/${sent.id}`, sent.id.slice(0, 6)],
  ["settled", `#/requests/${SETTLED}`, SETTLED.slice(0, 6)],
  ["dead-letter", `#/requests/${DEAD}`, DEAD.slice(0, 6)],
  ["dead", "#/dead", "Dead letters"],
  ["routes", "#/routes", "Routes"],
  ["route", "#/routes/prices", "prices"],
  ["listeners", "#/listeners", "Listeners"],
  ["lanes", "#/lanes", "Lanes"],
  ["lane", `#/lanes/${sent.lane}/${nonce}`, sent.lane],
  ["queues", "#/queues", "Queues"],
  ["queue", "#/queues/thumbnails/failed", "thumbnails"],
];
const LOOKS = [
  ["light", { colorScheme: "light" }],
  ["dark", { colorScheme: "dark" }],
  ["phone", { colorScheme: "light", viewport: { width: 390, height: 844 }, hasTouch: true }],
];

async function judge(page, name) {
  await page.evaluate(rules);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((one) => ["serious", "critical"].includes(one.impact));
  assert.deepEqual(
    serious.map(
      (one) =>
        `${one.id}: ${one.nodes
          .map((node) => node.target.join(" "))
          .slice(0, 4)
          .join(", ")}`,
    ),
    [],
    name,
  );
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `${name} is ${wide} px too wide`);
}

await browse(
  async (_, open) => {
    const look = async ([look, options]) => {
      const page = await open({ ...options, deviceScaleFactor: SHOTS ? 1.5 : 1 });
      page.expected = ["401"];
      if (SHOTS) await page.addInitScript(() => localStorage.setItem("roundtrip-range", "14400000"));
      await page.goto(process.env.BASE);
      await page.locator("#token").waitFor();
      if (SHOTS) await page.screenshot({ path: `${SHOTS}/login-${look}.png` });
      await judge(page, `login, ${look}`);
      await logIn(page, OPERATOR);
      for (const [name, hash, title] of PAGES) {
        await go(page, hash, title);
        if (["overview", "route"].includes(name)) await page.locator(".chart canvas").nth(1).waitFor();
        if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}-${look}.png`, fullPage: true });
        await judge(page, `${name}, ${look}`);
      }
      if (SHOTS) {
        await go(page, "#/dead", "Dead letters");
        await page.getByRole("button", { name: "Retry", exact: true }).first().click();
        await page.locator("dialog h2").waitFor();
        await page.screenshot({ path: `${SHOTS}/dialog-${look}.png` });
        await judge(page, `dialog, ${look}`);
      }
    };
    await Promise.all(LOOKS.map(look));
  },
  { token: null },
);
