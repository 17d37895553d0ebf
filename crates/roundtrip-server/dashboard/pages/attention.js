// What needs a person, each with the button that mends it.

import { h } from "../dom.js";
import { at, get, operates, post } from "../api.js";
import { confirm, laneLink, routeLink, shortened } from "../parts.js";
import { ago, count, date, plural, span } from "../words.js";

/** How often the doctor is asked, who calls nodes and may take long. */
const DOCTOR_MS = 30_000;
/** Items that are shown at once. */
const SHOWN = 5;
/** A listener of another process whose chain's newest stored block is older than this is told of. */
const OLD_MS = 600_000;
/** So many blocks that are not read are a backlog. */
const LATE_BLOCKS = 20;

const simple = (label, title, text, path, told, refresh, body) => async () => {
  if (
    await confirm({
      title,
      text,
      action: label,
      work: async () => {
        await post(path, body);
        return told;
      },
    })
  )
    refresh();
};

let diagnosis = { at_ms: 0, findings: [] };

/** What the doctor found last; a page does not wait for the next look. */
export function findings(refresh) {
  if (Date.now() - diagnosis.at_ms > DOCTOR_MS) {
    diagnosis.at_ms = Date.now();
    get(at(["doctor"])).then(
      ({ findings: found }) => {
        diagnosis = { at_ms: Date.now(), findings: found };
        refresh();
      },
      () => {},
    );
  }
  return diagnosis.findings;
}

/** What the doctor says of what no page has a button for: the store, nodes and accounts. */
function doctors(refresh) {
  const beyond = (about) => /^(store|node|account)/.test(about);
  return findings(refresh)
    .filter((one) => one.level !== "well" && beyond(one.about))
    .map((one) => {
      const lane = /^account of lane (.+)$/.exec(one.about)?.[1];
      return {
        level: one.level === "bad" ? "bad" : "warn",
        key: `doctor ${one.about} ${one.found}`,
        text: [h("strong", {}, one.about), ": ", shortened(one.found), one.to_do && h("span", { class: "quiet" }, `; ${one.to_do}`)],
        button: lane && h("a", { class: "button", href: `#/lanes/${encodeURIComponent(lane)}` }, "Look"),
      };
    });
}

/** What is wrong with a listener, if anything. One at the head of a chain that stands still is not late. */
function held(one) {
  if (one.state === "halted") return `stopped: ${one.detail ?? "a person must look"}`;
  if (one.state === "waits") return `waits: ${one.detail ?? "its chain does not answer"}`;
  if (one.behind_blocks > LATE_BLOCKS) return `is ${plural(one.behind_blocks, "block")} behind its chain`;
  if (one.behind_blocks === undefined && one.behind_ms > OLD_MS) return `has read nothing newer than ${span(one.behind_ms)}`;
  return null;
}

/** Everything that does not go on by itself, worst first. */
export function attention({ counts, routes, lanes, listeners }, refresh) {
  const items = [];
  for (const lane of lanes.filter((one) => one.status !== "active")) items.push(laneItem(lane, refresh));
  const dead = counts.filter((found) => found.state === "dead");
  if (dead.length) items.push(deadItem(dead));
  for (const route of routes.filter((one) => one.paused)) {
    const waiting = counts.filter((one) => one.route === route.name && one.state === "queued").reduce((sum, one) => sum + one.requests, 0);
    items.push({
      level: "warn",
      key: `route ${route.name}`,
      text: ["Route ", routeLink(route.name), " is ", h("strong", {}, "paused"), waiting ? `; ${count(waiting)} wait for a worker` : ""],
      button:
        operates() &&
        h(
          "button",
          {
            type: "button",
            onclick: simple(
              "Resume",
              `Resume ${route.name}?`,
              "Workers get its requests again.",
              at(["routes", route.name, "resume"]),
              `${route.name} goes on`,
              refresh,
            ),
          },
          "Resume",
        ),
    });
  }
  for (const one of listeners) {
    const trouble = held(one);
    if (!trouble) continue;
    items.push({
      level: one.state === "halted" ? "bad" : "warn",
      key: `listener ${one.name}`,
      text: ["Listener ", h("strong", {}, one.name), ` ${trouble}`],
      button: h("a", { class: "button", href: "#/listeners" }, "Look"),
    });
  }
  for (const route of routes) {
    const live = counts.filter((one) => one.route === route.name).reduce((sum, one) => sum + one.requests, 0);
    if (live >= route.capacity)
      items.push({
        level: "bad",
        key: `full ${route.name}`,
        text: ["Route ", routeLink(route.name), ` is full: ${count(live)} live requests, and it pushes back`],
        button: h("a", { class: "button", href: `#/routes/${encodeURIComponent(route.name)}` }, "Look"),
      });
  }
  items.push(...doctors(refresh));
  return items.sort((a, b) => (a.level === b.level ? 0 : a.level === "bad" ? -1 : 1));
}

/** Dead letters of all routes, most first. */
function deadItem(dead) {
  const all = dead.reduce((sum, one) => sum + one.requests, 0);
  const most = [...dead].sort((a, b) => b.requests - a.requests);
  const oldest_at_ms = Math.min(...dead.map((one) => one.oldest_at_ms));
  const only = dead.length === 1 ? `?route=${encodeURIComponent(dead[0].route)}` : "";
  return {
    level: "bad",
    key: "dead",
    text: [
      h("strong", {}, plural(all, "dead letter")),
      dead.length === 1 ? " on " : ": ",
      most.slice(0, 3).map((one, n) => [n > 0 && ", ", dead.length > 1 && `${count(one.requests)} on `, routeLink(one.route)]),
      most.length > 3 && " and others",
      `; the oldest came in ${ago(oldest_at_ms)}`,
    ],
    button: h("a", { class: "button", href: `#/dead${only}` }, operates() ? "Review and retry" : "Review"),
  };
}

function laneItem(lane, refresh) {
  const resume =
    operates() &&
    h(
      "button",
      {
        type: "button",
        onclick: simple(
          "Resume",
          `Resume ${lane.name}?`,
          "It takes new transactions again.",
          at(["lanes", lane.name, "resume"]),
          `${lane.name} goes on`,
          refresh,
        ),
      },
      "Resume",
    );
  const look = h("a", { class: "button", href: `#/lanes/${encodeURIComponent(lane.name)}` }, "Look");
  const item = (level, text, button) => ({
    level,
    key: `lane ${lane.name}`,
    text: ["Lane ", laneLink(lane.name), " ", text].flat(),
    button,
  });
  switch (lane.status) {
    case "paused":
      return item("warn", ["is ", h("strong", {}, "paused"), `: ${lane.reason ?? ""}`], resume);
    case "quarantined":
      return item("warn", ["is in ", h("strong", {}, "quarantine"), ` until ${date(lane.until_ms)}`], resume);
    case "unfunded":
      return item("bad", [h("strong", {}, "cannot pay"), `: ${lane.reason ?? ""}. Fund its account; it goes on by itself`], look);
    default:
      return item("bad", [h("strong", {}, "is stopped"), ": the chain has seen more of it than the store remembers"], look);
  }
}

export const list = (items) =>
  items.length === 0
    ? h("p", { class: "all-well" }, "Nothing needs you.")
    : h(
        "div",
        {},
        rows(items.slice(0, SHOWN), "What needs a person"),
        items.length > SHOWN &&
          h(
            "details",
            { class: "further" },
            h("summary", {}, `${items.length - SHOWN} more`),
            rows(items.slice(SHOWN), "More that needs a person"),
          ),
      );

/** One item; what is too long for two lines is in its title, and on a phone, which shows no titles, it has more lines. */
function attentionRow(item) {
  const text = h("span", { class: "text" }, item.text);
  text.title = text.textContent;
  return h("li", { class: item.level, "data-key": item.key }, text, item.button);
}

const rows = (items, label) =>
  h(
    "ul",
    { class: "attention", "aria-label": label },
    items.map((item) => attentionRow(item)),
  );
