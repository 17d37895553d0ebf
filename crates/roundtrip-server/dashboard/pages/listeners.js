// Listeners: how far each has read, how far its chain is, and whether its nodes answer.

import { h } from "../dom.js";
import { at, get } from "../api.js";
import { command, empty, facts, head, status } from "../parts.js";
import { ago, count, now, plural, span } from "../words.js";

const STATES = {
  following: ["following", "good"],
  waits: ["waits", "warn"],
  halted: ["stopped", "bad"],
  elsewhere: ["in another process", "calm"],
};
/** Blocks shown to the left of the cursor. */
const BEHIND = 8;
/** What was last seen longer ago is not how it is now. */
const STALE_MS = 60_000;

export const page = () => ({
  title: "Listeners",
  load: async () => (await get(at(["listeners"]))).listeners,
  view: (listeners) => [
    head("Listeners", "What reads chains and timers into the inbox."),
    listeners.length === 0
      ? empty(
          "No listener has read anything yet.",
          "Requests come by calls alone, or no chain was read so far. A route reads a chain by its events:",
          command('[[routes.board.events]]\nchain = "main"\nevent = "Requested(uint256 indexed id, bytes payload)"\naddresses = ["0x…"]'),
        )
      : h("div", { class: "cards" }, listeners.map(card)),
  ],
});

function card(one) {
  const [word, kind] = STATES[one.state] ?? [one.state, "calm"];
  return h(
    "article",
    { class: "card", "data-key": one.name },
    h("header", {}, h("h2", {}, one.name), status(word, kind)),
    one.detail && h("p", { class: kind === "bad" ? "trouble" : "note" }, one.detail),
    one.head !== undefined && ruler(one),
    facts(
      [
        ["Chain", one.origin],
        ["Stored and final up to", one.cursor !== undefined && count(one.cursor)],
        ["Read up to", one.read_to !== undefined && count(one.read_to)],
        ["Chain's final block", one.finalized !== undefined && count(one.finalized)],
        ["Chain's head", one.head !== undefined && `${count(one.head)}${isStale(one) ? `, ${ago(one.looked_at_ms)}` : ""}`],
        ["Lag", lag(one)],
        ["Newest block read", one.behind_ms !== undefined && `${span(one.behind_ms)} old`],
      ].filter(([, value]) => value !== false),
    ),
    one.nodes?.length > 0 &&
      h(
        "ul",
        { class: "nodes", "aria-label": "Nodes" },
        one.nodes.map((node) => {
          const [kind, said] = standing(node);
          return h("li", { class: kind }, h("span", { class: "mono" }, node.name), h("span", { class: "quiet" }, said));
        }),
      ),
  );
}

/** Whether its chain has not shown for a while how far it is. */
const isStale = ({ looked_at_ms }) => looked_at_ms !== undefined && now() - looked_at_ms > STALE_MS;

/** How far behind its chain it is; without an answer of the chain, how far it was. Pure, but for the time. */
export function lag(one) {
  if (one.behind_blocks === undefined) return null;
  const said = one.behind_blocks === 0 ? "at the head" : `${plural(one.behind_blocks, "block")} behind`;
  if (isStale(one)) return `not known; ${said} ${ago(one.looked_at_ms)}`;
  return one.state === "following" || one.looked_at_ms === undefined ? said : `${said} ${ago(one.looked_at_ms)}`;
}

/** How a node did, and since when: one that was never asked is neither well nor ill. Pure, but for the time. */
export function standing({ healthy, asked_at_ms, answered_at_ms }) {
  if (asked_at_ms === undefined) return ["idle", "not asked yet: those before it answer"];
  const last = answered_at_ms === undefined ? "never answered yet" : `last answered ${ago(answered_at_ms)}`;
  if (!healthy) return ["bad", `does not answer well; ${last}`];
  if (answered_at_ms === undefined || answered_at_ms < asked_at_ms) return ["warn", `did not answer ${ago(asked_at_ms)}; ${last}`];
  if (now() - asked_at_ms > STALE_MS) return ["idle", `${last}, and was not asked since`];
  return ["good", `answers; ${last}`];
}

/** Cursor, final block and head on one line. */
function ruler(one) {
  const from = Math.max(0, Math.min(one.cursor ?? one.head, one.finalized ?? one.head) - BEHIND);
  const place = (height) => `${(100 * (height - from)) / Math.max(1, one.head - from)}%`;
  const mark = (height, name) => {
    const element = h("span", { class: `tick ${name}`, title: `${name}: ${count(height)}` });
    element.style.insetInlineStart = place(height);
    return element;
  };
  const bar = (height, name) => {
    const element = h("span", { class: `fill ${name}` });
    element.style.inlineSize = place(height);
    return element;
  };
  const read = one.read_to ?? one.cursor ?? from;
  const bars = h(
    "div",
    {
      class: "ruler",
      role: "img",
      "aria-label": `cursor ${one.cursor ?? "none"}, read up to ${read}, final ${one.finalized ?? "none"}, head ${one.head}`,
    },
    bar(read, "read"),
    bar(one.cursor ?? from, "stored"),
    one.finalized !== undefined && mark(one.finalized, "final"),
    mark(one.head, "head"),
  );
  const keys = { stored: "stored and final", read: "read", final: "final on the chain", head: "head" };
  const key = ([kind, name]) => h("li", {}, h("span", { class: `swatch ${kind}` }), name);
  return h("div", {}, bars, h("ul", { class: "legend" }, Object.entries(keys).map(key)));
}
