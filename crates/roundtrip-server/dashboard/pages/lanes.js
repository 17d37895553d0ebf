// Lanes: their windows, what is on each slot, and what a person can do about it.

import { h } from "../dom.js";
import { Problem, at, get, post } from "../api.js";
import { act, command, confirm, copyable, empty, facts, head, json, laneLink } from "../parts.js";
import { requestLink, section, shortened, status, trail } from "../parts.js";
import { noSuch } from "../faults.js";
import { amount, brief, count, date, gwei, plural, time } from "../words.js";
import { accountOf, diagnosis, finding, fund, missing } from "./doctor.js";
import { resumeLane } from "./orders.js";
import { legend, strip } from "./slots.js";

const KINDS = { active: "good", paused: "warn", quarantined: "warn", unfunded: "bad", stopped: "bad" };
/** Where a parcel is, in the words of the legend. */
const STAGES = { assigned: "in flight", included: "in a block", confirmed: "confirmed" };
/** Lanes whose slots are drawn in the list. */
const DRAWN_MAX = 32;

export const page = (given) => (given.rest.length ? one(given, given.rest[0], given.rest[1]) : all(given));

const all = ({ refresh }) => ({
  title: "Lanes",
  load: async () => {
    const { lanes } = await get(at(["lanes"]));
    lanes.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    const whole = await Promise.all(lanes.slice(0, DRAWN_MAX).map((lane) => get(at(["lanes", lane.name]))));
    return [...whole, ...lanes.slice(DRAWN_MAX)];
  },
  view: (lanes) => [
    head("Lanes", "Accounts that send transactions, each with its own consecutive slots.", lanes.length > 0 && legend()),
    lanes.length === 0
      ? empty(
          "No lane has sent anything yet.",
          "Answers go out as transactions where a destination names lanes:",
          command('[lanes.a]\nsigner = { key = { env = "KEY_A" } }\n\n[destinations.board.transactions]\nchain = "main"\nlanes = ["a"]'),
        )
      : h(
          "div",
          { class: "cards wide" },
          lanes.map((lane) =>
            h(
              "article",
              { class: "card", "data-key": lane.name },
              h(
                "header",
                {},
                h("h2", {}, laneLink(lane.name)),
                status(lane.status, KINDS[lane.status] ?? "calm"),
                h("span", { class: "quiet" }, `to ${lane.destination}`),
              ),
              lane.reason && h("p", { class: "note" }, lane.reason),
              strip(lane),
              facts([
                ["Under way", `${count(lane.under_way)} of ${count(lane.window)}`],
                ["Settled below", count(lane.settled)],
                ...account(lane, refresh),
                ["Owner", owner(lane)],
              ]),
            ),
          ),
        ),
  ],
});

function owner(lane) {
  if (!lane.owner) return "nobody sends on it now";
  return h("span", { class: "clipped", title: `${lane.owner.name}, until ${date(lane.owner.until_ms)}` }, lane.owner.name);
}

const LEAST = "balance_min_gwei, or what a full window of transactions costs now";

/** Whose account it is, and what that has. */
function account(lane, refresh) {
  const { at_ms } = diagnosis(refresh);
  const found = accountOf(lane.name) ?? {};
  const address = found.address ?? lane.account;
  const told = (wei) => amount(wei, found.currency);
  const why = finding("balance_unknown", lane.name) ? "not known: no node tells" : finding("key_away", lane.name)?.found;
  const lacks = missing(found) !== null;
  const balance =
    found.balance === undefined
      ? h("span", { class: "quiet" }, why ? shortened(why) : at_ms ? "not known" : "asking")
      : [told(found.balance), lacks && [" ", status("low", "warn")]];
  return [
    ["Account", address && copyable(address, brief(address, 8))],
    ["Balance", balance],
    ["Should have", found.least !== undefined && h("span", { title: LEAST }, told(found.least))],
  ].filter(([, value]) => value);
}

const atCap = ({ name, at_fee_cap }) =>
  [`Slot ${count(at_fee_cap)} pays all that it may and is not mined; what is above it waits.`, finding("fee_cap", name)?.to_do].join(" ");

function one({ refresh }, name, chosen) {
  return {
    title: `Lane ${name}`,
    load: async () => {
      try {
        return await get(at(["lanes", name]));
      } catch (error) {
        if (error instanceof Problem && error.status === 404) return null;
        throw error;
      }
    },
    view: (lane) => {
      if (!lane) return noSuch("lane", name, "#/lanes");
      const parcel = lane.parcels?.find((found) => String(found.nonce) === chosen);
      const stuck = lane.parcels?.find((found) => found.stage === "assigned");
      return [
        trail("#/lanes", "Lanes"),
        head(name, [status(lane.status, KINDS[lane.status] ?? "calm"), ` sends answers to ${lane.destination}`], actions(lane, refresh)),
        lane.reason && h("p", { class: "note" }, lane.reason),
        lane.at_fee_cap !== undefined && h("p", { class: "note" }, atCap(lane)),
        section("Window", legend(lane), h("div", { class: "card" }, strip(lane, chosen))),
        facts(
          [
            ["Under way", `${count(lane.under_way)} of ${count(lane.window)}`],
            ["Next slot", count(lane.next)],
            ["Settled below", count(lane.settled)],
            ...account(lane, refresh),
            ["Owner", owner(lane)],
            lane.owner && ["Its seat", `until ${time(lane.owner.until_ms)}, or renewed`],
            lane.until_ms && ["Quarantine ends", date(lane.until_ms)],
            ["Lowest in flight", stuck && h("a", { href: `#/lanes/${encodeURIComponent(name)}/${stuck.nonce}` }, `slot ${stuck.nonce}`)],
          ].filter(Boolean),
        ),
        chosen !== undefined &&
          (parcel
            ? slot(lane, parcel, refresh)
            : section(`Slot ${chosen}`, null, empty("Nothing is on this slot.", "It is final and forgotten, or not given out yet."))),
      ];
    },
  };
}

function slot(lane, parcel, refresh) {
  const cancel = parcel.stage === "assigned" && !parcel.cancelled && act("Cancel", () => cancelSlot(lane, parcel, refresh), "danger");
  return section(
    `Slot ${parcel.nonce}`,
    cancel,
    facts([
      ["Stage", `${STAGES[parcel.stage]}${parcel.cancelled ? ", to be cancelled" : ""}`],
      [
        "Mined",
        parcel.mined && [
          `block ${count(parcel.mined.height)} `,
          h("span", { class: "mono quiet", title: parcel.mined.block }, brief(parcel.mined.block)),
        ],
      ],
      ["Carries", parcel.requests.length ? parcel.requests.map((id) => [requestLink(id), " "]) : "nothing: it only uses the slot up"],
    ]),
    h(
      "ol",
      { class: "attempts" },
      parcel.attempts.map((attempt, n) => attemptView(attempt, n, parcel.mined?.hash === attempt.hash)),
    ),
  );
}

/** What a transaction pays and calls. */
export const called = (said) => [
  facts(
    [
      ["Fee at the most", gwei(said.fee_most)],
      ["Tip", gwei(said.fee_tip)],
      ["Gas limit", count(said.gas)],
      ["To", copyable(said.to, brief(said.to, 8))],
      said.value !== "0" && ["Value", `${said.value} wei`],
    ].filter(Boolean),
  ),
  said.function && h("p", { class: "mono signature" }, said.function),
  said.arguments && json(JSON.stringify(said.arguments)),
];

export function attemptView(attempt, n, mined) {
  const said = attempt.transaction;
  return h(
    "li",
    { class: "card", "data-key": attempt.hash },
    h(
      "header",
      {},
      h("h3", {}, `Attempt ${n + 1}`),
      mined && status("mined", "good"),
      !attempt.carries && status("carries nothing", "warn"),
      copyable(attempt.hash, brief(attempt.hash, 10)),
    ),
    said && called(said),
    h("details", {}, h("summary", {}, "Signed bytes"), h("pre", { class: "raw", tabindex: "0" }, attempt.bytes)),
  );
}

function actions(lane, refresh) {
  const order = async (name, { told, ...said }, body) => {
    const work = async (_, form) => {
      const given = body(form);
      await post(at(["lanes", lane.name, name]), given);
      return told(given);
    };
    if (await confirm({ ...said, work })) refresh();
  };
  const reason = h("label", {}, "Why", h("input", { name: "reason", maxlength: 200, placeholder: "for whoever finds it paused" }));
  const pause = () =>
    order(
      "pause",
      {
        title: `Pause ${lane.name}?`,
        text: "It takes no new transactions. What is under way goes on to its end.",
        content: reason,
        action: "Pause",
        told: () => `${lane.name} is paused`,
      },
      (form) => (form.get("reason") ? { reason: form.get("reason") } : {}),
    );
  const held = ["paused", "quarantined"].includes(lane.status);
  const buttons = [held ? act("Resume", () => resumeLane(lane.name, refresh), "primary") : act("Pause", pause)];
  if (lane.status === "unfunded")
    buttons.push(h("button", { type: "button", class: "primary", onclick: () => fund(lane, refresh) }, "Fund it"));
  if (lane.status === "stopped")
    buttons.unshift(
      act("Rebuild", () => rebuild(lane, refresh), "primary"),
      act("Reconcile", () => reconcile(lane, order)),
    );
  return buttons;
}

function reconcile(lane, order) {
  const field = h(
    "label",
    {},
    "The next slot that is free on the chain",
    h("input", { name: "next", type: "number", min: lane.next, required: true, value: lane.next }),
  );
  order(
    "reconcile",
    {
      title: `Reconcile ${lane.name}?`,
      kind: "danger",
      action: "Reconcile",
      content: field,
      told: ({ next }) => `${lane.name} goes on at slot ${count(next)}`,
      text: "Only after every transaction of this account was matched by hand with what it answered: whatever was not is sent again. Rebuild does the matching by itself.",
    },
    (form) => ({ next: Number(form.get("next")) }),
  );
}

async function rebuild(lane, refresh) {
  const path = at(["destinations", lane.destination, "rebuild"]);
  const field = h(
    "label",
    {},
    "Wait for answers that are made again, in seconds",
    h("input", { name: "patience", type: "number", min: 1, value: 60, required: true }),
  );
  const work = async (say, form) => {
    let told = await post(path, { patience_ms: Number(form.get("patience")) * 1000 });
    while (told.progress !== "done") {
      say(`waits for ${told.until ?? "its turn"}`);
      await new Promise((then) => setTimeout(then, 1000));
      told = await get(path);
    }
    const { sent, done, failed, foreign, unanswered } = told.rebuilt;
    return `${plural(sent, "unknown transaction")}: ${count(done)} done, ${count(failed)} failed, ${count(foreign)} of others, ${count(unanswered)} unanswered`;
  };
  const text =
    "Every transaction that the store does not know is matched with the answers that are made again; then its lanes go on, and nothing goes out twice.";
  if (await confirm({ title: `Rebuild the lanes of ${lane.destination}?`, text, action: "Rebuild", content: field, work })) refresh();
}

async function cancelSlot(lane, parcel, refresh) {
  const choice = h(
    "fieldset",
    {},
    h("legend", {}, "What becomes of its answers"),
    h("label", {}, h("input", { type: "radio", name: "then", value: "requeue", checked: true }), "They go out again on another slot"),
    h("label", {}, h("input", { type: "radio", name: "then", value: "dead" }), "They are dead letters"),
  );
  const work = async (_, form) => {
    await post(at(["lanes", lane.name, "cancel"]), { nonce: parcel.nonce, requeue: form.get("then") === "requeue" });
    return `Slot ${parcel.nonce} is to be cancelled; what is mined decides`;
  };
  const text = `A transaction that carries nothing takes slot ${parcel.nonce} instead, if it is mined first. ${plural(parcel.requests.length, "answer")} ${parcel.requests.length === 1 ? "is" : "are"} on it.`;
  if (await confirm({ title: `Cancel slot ${parcel.nonce}?`, text, kind: "danger", action: "Cancel it", content: choice, work })) refresh();
}
