// Every page in light and dark and on a phone: no serious fault by axe, nothing wider than the screen; pictures if wanted.

import { BASE, DEAD, EXPIRED, OPERATOR, SETTLED, SHOTS, SUBMITTER, TRANSACTION, browse, call, go, judge, logIn } from "./browser.mjs";

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
  ["kept", "#/routes/lookups", "lookups"],
  ["transaction", `#/requests?q=${TRANSACTION}`, "Requests"],
  // What cannot be shown.
  ["no-page", "#/nothing/here", "There is no page here"],
  ["no-request", `#/requests/${"ab".repeat(32)}`, "No such request is here"],
  ["no-id", "#/requests/xyz", "This is no id of a request"],
  ["no-lane", "#/lanes/west", "No lane is called “west”"],
  ["no-hash", `#/requests?q=${"ab".repeat(32)}`, "Requests"],
];
const MINUTE_MS = 60_000;
/** Listeners at work, which nobody is while a picture is made of them. */
const LISTENERS = () => {
  const now = Date.now();
  const node = (name, more) => ({ name, healthy: true, asked_at_ms: now - 400, answered_at_ms: now - 400, ...more });
  const base = { origin: "base", cursor: 21_401_558, lead: 21_401_558, finalized: 21_401_560, head: 21_401_624, looked_at_ms: now - 400 };
  return [
    {
      ...base,
      ...{ name: "prices@base", state: "following", read_to: 21_401_624, behind_blocks: 0, behind_ms: 1900 },
      nodes: [node("https://base.example"), { name: "https://fallback.example", healthy: true }],
    },
    {
      ...base,
      ...{ name: "reports@base", state: "waits", detail: "the source gave no answer: https://base.example: 503 Service Unavailable" },
      ...{ read_to: 21_401_580, behind_blocks: 44, behind_ms: 7 * MINUTE_MS, looked_at_ms: now - 7 * MINUTE_MS },
      nodes: [
        node("https://base.example", { healthy: false, answered_at_ms: now - 7 * MINUTE_MS }),
        node("https://fallback.example", { answered_at_ms: now - MINUTE_MS }),
      ],
    },
    { name: "audits@main", state: "halted", detail: "a reorg of 70 blocks goes below what was final", origin: "main", cursor: 19_002_117 },
    { name: "nightly", state: "following", cursor: 20_775 },
  ];
};
/** What the doctor says where nodes answer. */
const ACCOUNTS = [
  ["north", "1834000000000000000"],
  ["south", "420700000000000000"],
  ["east", "1200000000000"],
].map(([lane, balance]) => {
  const address = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
  return { lane, chain: "base", currency: "ETH", address, balance, least: "19200000000000000" };
});
const LOOKS = [
  ["light", { colorScheme: "light" }],
  ["dark", { colorScheme: "dark" }],
  ["phone", { colorScheme: "light", viewport: { width: 390, height: 844 }, hasTouch: true }],
  ["small-dark-phone", { colorScheme: "dark", viewport: { width: 360, height: 740 }, hasTouch: true }],
];

/** Pages of those who are not in: how each comes about, and what it is called. */
const OUTSIDE = [
  ["login", (page) => page.goto(BASE), "Log in"],
  ["expired", (page) => page.goto(`${BASE}/#token=${EXPIRED}`), "Log in"],
  ["role", (page) => page.goto(`${BASE}/#token=${SUBMITTER}`), "You may not look"],
];

await browse(
  async (_, open) => {
    const look = async ([look, options]) => {
      const shoot = (page, name, more) => SHOTS && page.screenshot({ path: `${SHOTS}/${name}-${look}.png`, ...more });
      const fresh = async () => {
        const page = await open({ ...options, deviceScaleFactor: SHOTS ? 1.5 : 1 });
        page.expected = ["401", "404", "422", "503", "ERR_FAILED"];
        return page;
      };
      for (const [name, come, title] of OUTSIDE) {
        const page = await fresh();
        await come(page);
        await page.locator("main h1", { hasText: title }).waitFor();
        await shoot(page, name);
        await judge(page, `${name}, ${look}`);
        await page.close();
      }
      const page = await fresh();
      if (SHOTS) await page.addInitScript(() => localStorage.setItem("roundtrip-range", "14400000"));
      await logIn(page, OPERATOR);
      for (const [name, hash, title] of PAGES) {
        await go(page, hash, title);
        if (["overview", "route"].includes(name)) await page.locator(".chart canvas").nth(1).waitFor();
        // What the doctor says is part of it.
        if (name === "overview") await page.locator(".aged").waitFor();
        await shoot(page, name, { fullPage: true });
        await judge(page, `${name}, ${look}`);
      }
      await go(page, "#/dead", "Dead letters");
      await page.getByRole("button", { name: "Retry", exact: true }).first().click();
      await page.locator("dialog h2").waitFor();
      await shoot(page, "dialog");
      await judge(page, `dialog, ${look}`);
      await page.keyboard.press("Escape");
      // Where nodes answer: listeners at work, accounts with what they have, and what to do about one that has little.
      await page.route("**/v1/listeners", (route) => route.fulfill({ json: { listeners: LISTENERS() } }));
      await page.route("**/v1/doctor*", (route) => route.fulfill({ json: { findings: [], accounts: ACCOUNTS, looked_at_ms: Date.now() - 4_000 } }));
      await page.goto(`${BASE}/#/listeners`);
      await page.reload();
      await page.locator(".nodes li.idle").waitFor();
      await shoot(page, "at-work", { fullPage: true });
      await judge(page, `listeners at work, ${look}`);
      await go(page, "#/lanes", "Lanes");
      await page.locator(".status", { hasText: "low" }).waitFor();
      await shoot(page, "accounts", { fullPage: true });
      await judge(page, `accounts, ${look}`);
      await go(page, `#/lanes/${sent.lane}/${nonce}`, sent.lane);
      await page.locator(".facts", { hasText: "ETH" }).waitFor();
      await shoot(page, "account", { fullPage: true });
      await go(page, "#/", "Overview");
      await page.getByRole("button", { name: "Fund it" }).click();
      await page.locator("dialog h2").waitFor();
      await shoot(page, "fund");
      await judge(page, `fund, ${look}`);
      await page.getByRole("button", { name: "Close" }).click();
      await page.unroute("**/v1/listeners");
      await page.unroute("**/v1/doctor*");
      await go(page, "#/requests", "Requests");
      await page.reload();
      await go(page, "#/", "Overview");
      await page.getByRole("button", { name: "What to do" }).first().click();
      await page.locator("dialog h2").waitFor();
      await shoot(page, "advice");
      await judge(page, `advice, ${look}`);
      // Nobody answers: the first time, and while a page is shown.
      await page.route("**/v1/**", (route) => route.abort());
      await page.goto(`${BASE}/#/lanes`);
      await page.reload();
      await page.locator("h1", { hasText: "The server does not answer" }).waitFor();
      await shoot(page, "away");
      await judge(page, `away, ${look}`);
    };
    await Promise.all(LOOKS.map(look));
  },
  { token: null },
);
