// A real browser, what every script asks of it, and what no page may do: call anybody else, or say that something is wrong.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const require = createRequire(join(process.env.ROUNDTRIP_TOOLS, "package.json"));
const { chromium } = require("playwright-core");
const AXE = require("axe-core").source;

export const { BASE, OPERATOR, VIEWER, SUBMITTER, EXPIRED, SETTLED, TRANSACTION, DEAD, SHOTS } = process.env;
const PATIENCE_MS = 30_000;
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-dev-shm-usage",
];

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
/** Asks whoever started this script for something that only they can do. */
export async function ask(what) {
  console.log(`ask ${what}`);
  await lines.next();
}

/** A call of the API, as a program makes it. */
export async function call(path, body, token = OPERATOR) {
  const headers = { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const response = await fetch(BASE + path, body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
  assert.ok(response.ok, `${path}: ${response.status}`);
  return response.json();
}

/** A call of the chain's node. */
export async function rpc(method, params) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const answer = await fetch(process.env.NODE, { method: "POST", headers: { "content-type": "application/json" }, body });
  const { result, error } = await answer.json();
  assert.equal(error, undefined, method);
  return result;
}

export const submit = async (route, payload) => (await call(`/v1/routes/${route}/requests`, payload)).id;

/** Takes one job of a route, and fails it for good or answers it. */
export async function work(route, result) {
  const {
    jobs: [job],
  } = await call("/v1/work/lease", { route, worker: "tester", wait_ms: 10_000 });
  const one = { id: job.id, token: job.token };
  if (result.error) await call("/v1/work/fail", { jobs: [{ ...one, error: result.error, then: "dead" }] });
  else await call("/v1/work/answer", { jobs: [{ ...one, response: result }] });
  return job.id;
}

/** Runs a script in a fresh browser; it fails if any page called another server or had an error. */
export async function browse(script, { token = OPERATOR, ...options } = {}) {
  const browser = await chromium.launch({ executablePath: process.env.BROWSER, args: FLAGS });
  const wrong = [];
  const open = async (more = {}) => {
    const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, reducedMotion: "reduce", ...options, ...more });
    context.setDefaultTimeout(PATIENCE_MS);
    const page = await context.newPage();
    page.weight = 0;
    page.expected = [];
    page.on("request", (request) => {
      if (!request.url().startsWith(`${BASE}/`) && !request.url().startsWith("data:")) wrong.push(`called ${request.url()}`);
    });
    page.on("response", async (response) => {
      page.weight += Number(response.headers()["content-length"] ?? 0);
    });
    page.on("pageerror", (error) => wrong.push(`threw ${error.stack}`));
    page.on("console", (message) => {
      if (message.type() === "error" && !page.expected.some((part) => message.text().includes(part)))
        wrong.push(`said ${message.text()} at ${message.location().url}`);
    });
    return page;
  };
  try {
    const page = await open();
    if (token) await logIn(page, token);
    await script(page, open);
    assert.deepEqual(wrong, []);
  } catch (error) {
    console.log(`wrong: ${JSON.stringify(wrong)}`);
    throw error;
  } finally {
    await browser.close();
  }
  process.exit(0);
}

export async function logIn(page, token) {
  await page.goto(token ? `${BASE}/#token=${token}` : BASE);
  await page.locator("h1").first().waitFor();
}

/** Goes to a page, and waits until it is there: not the one before, which may have the same title. */
export async function go(page, hash, title) {
  await page.goto(`${BASE}/${hash}`);
  await page.waitForFunction(() => document.querySelector("main > .page")?.dataset.at === location.hash);
  await page.locator("main h1", { hasText: title }).waitFor();
}

/** Waits until an element says this. */
export const says = (page, where, text) => page.locator(where, { hasText: text }).first().waitFor();

/** What needs a person and says this. */
export const needs = (page, text) => page.locator(".attention li", { hasText: text });

/** Presses a button, and the one in the dialog that asks whether it is meant. */
export async function confirmed(page, button, action = button) {
  await page.getByRole("button", { name: button, exact: true }).first().click();
  await page.locator("dialog").getByRole("button", { name: action, exact: true }).click();
}

/** Whether everybody can use what is shown: no serious fault by axe, nothing wider than the screen. */
export async function judge(page, name) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((one) => ["serious", "critical"].includes(one.impact));
  const places = (one) => one.nodes.map((node) => node.target.join(" ")).slice(0, 4);
  assert.deepEqual(
    serious.map((one) => `${one.id}: ${places(one).join(", ")}`),
    [],
    name,
  );
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `${name} is ${wide} px too wide`);
}

export { assert };
