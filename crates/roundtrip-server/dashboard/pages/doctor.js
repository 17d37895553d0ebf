// What the doctor found, and what to do about it: the doctor calls nodes and may take long, so no page waits for it.

import { h } from "../dom.js";
import { Problem, at, get, operates, post } from "../api.js";
import { confirm, copyable, facts, shortened } from "../parts.js";
import { amount, brief } from "../words.js";

/** How often the doctor is asked; what it told somebody else since will do. */
const EVERY_MS = 30_000;

let last = { at_ms: 0, findings: [], accounts: [] };

async function ask(within_ms) {
  last.at_ms = Date.now();
  const { findings, accounts = [], looked_at_ms } = await get(at(["doctor"], { within_ms }));
  last = { at_ms: Date.now(), findings, accounts, looked_at_ms };
  return last;
}

/** What the doctor said last; it is asked again now and then, and whoever shows it is told. */
export function diagnosis(refresh) {
  if (Date.now() - last.at_ms > EVERY_MS) ask(EVERY_MS).then(refresh, () => {});
  return last;
}

/** When nodes, accounts and tools were last asked, by whomever; nothing before the first answer. */
export const lookedAt = () => last.looked_at_ms;

/** What is wrong of this kind with what has this name, if anything. */
export const finding = (kind, name) => last.findings.find((one) => one.kind === kind && one.name === name);

/** The account of a lane, as far as it is known. */
export const accountOf = (lane) => last.accounts.find((one) => one.lane === lane);

/** Text with its commands set apart, each to be copied. */
const instructions = (text) => text.split("`").map((part, n) => (n % 2 ? copyable(part, h("code", {}, part)) : shortened(part)));

/** Looks again; whoever did what was to be done learns whether that was it. */
async function looked({ kind, name, about }) {
  await ask();
  const still = finding(kind, name);
  if (still) throw new Problem(0, "It is still so", still.found);
  return `${about} is well now`;
}

/** Says what to do about a finding, with ways to where it shows, and looks again when somebody has done it. */
export async function advise(found, refresh, ...ways) {
  const content = [
    h("p", { class: "sentence" }, shortened(found.found)),
    h("div", { class: "note" }, h("p", { class: "strong" }, "What to do"), h("p", { class: "sentence" }, instructions(found.to_do))),
    ways.length > 0 && h("p", { class: "actions" }, ways),
  ];
  if (await confirm({ title: found.about, content, action: "Look again", refuse: "Close", work: () => looked(found) })) refresh();
}

/** What is missing of what an account should have, in wei; nothing if that is not known. Pure. */
export function missing({ balance, least }) {
  if (balance === undefined || least === undefined) return null;
  const wei = BigInt(least) - BigInt(balance);
  return wei > 0n ? wei : null;
}

/** Says where to send how much, and lets the lane go on. */
export async function fund(lane, refresh) {
  const account = accountOf(lane.name) ?? {};
  const address = account.address ?? lane.account;
  const short = missing(account);
  const has = account.balance !== undefined && amount(account.balance, account.currency);
  const lacks = short !== null && amount(short, account.currency, "up");
  const content = [
    facts([
      ["Send to", address ? copyable(address, brief(address, 8)) : "its account: the key of this lane cannot be opened here"],
      ["On chain", account.chain],
      ["It has", has],
      ["It lacks at least", lacks && copyable(lacks.split(" ")[0].replaceAll(",", ""), lacks)],
    ]),
    lane.reason && h("p", { class: "note" }, `Its node says: ${lane.reason}`),
    h("p", { class: "quiet" }, "Once it is funded, it goes on by itself within a minute. Nothing is lost meanwhile: its answers wait."),
  ];
  const resumes = lane.status === "unfunded" && operates();
  const work = async () => {
    await ask();
    const now = accountOf(lane.name) ?? {};
    // For a lane that stands still, more than before is worth a try.
    const enough = missing(now) === null || (resumes && BigInt(now.balance) > BigInt(account.balance ?? now.balance));
    if (!enough) throw new Problem(0, "It still has too little", `${amount(now.balance, now.currency)} is there now.`);
    if (resumes) await post(at(["lanes", lane.name, "resume"]));
    return resumes ? `${lane.name} goes on` : `${lane.name} has enough now`;
  };
  const action = resumes ? "It is funded: go on" : "Look again";
  if (await confirm({ title: `Fund ${lane.name}`, content, action, refuse: "Close", work })) refresh();
}
