// What needs a person, each with the button that mends it.

import { h } from "../dom.js";
import { operates } from "../api.js";
import { act, laneLink, routeLink, shortened } from "../parts.js";
import { ago, capital, count, date, plural, span } from "../words.js";
import { advise, diagnosis, finding, fund } from "./doctor.js";
import { resumeLane, turn } from "./orders.js";

/** Items that are shown at once. */
const SHOWN = 8;
/** A listener of another process whose chain's newest stored block is older than this is told of. */
const OLD_MS = 600_000;
/** So many blocks that are not read are a backlog. */
const LATE_BLOCKS = 20;
/** What the doctor finds that routes, lanes and listeners tell of themselves, and sooner. */
const TOLD = new Set([
  "well",
  "route_full",
  "route_paused",
  "dead_letters",
  "lane_paused",
  "lane_quarantined",
  "lane_unfunded",
  "lane_stopped",
  "fee_cap",
  "listener_halted",
  "listener_waits",
  "listener_behind",
  "listener_old",
]);

const look = (href, word = "Look") => h("a", { class: "button", href }, word);
const lanePage = (name, slot) => `#/lanes/${encodeURIComponent(name)}${slot === undefined ? "" : `/${slot}`}`;
const listed = (route, state) => `#/requests?route=${encodeURIComponent(route)}&state=${state}`;
const press = (label, onclick) => h("button", { type: "button", onclick }, label);

/** Where more is seen of what the doctor found. */
function ways({ kind, name }) {
  if (["unreached", "no_worker", "tool_away"].includes(kind)) return [look(listed(name, "held,queued"), "What waits")];
  if (kind === "undelivered") return [look(listed(name, "ready"), "What waits")];
  if (kind === "route_filling") return [look(`#/requests?route=${encodeURIComponent(name)}`, "What is there")];
  if (kind === "not_mined") return [look("#/lanes", "Lanes")];
  if (["lane_gap", "slot_stuck", "key_lost", "key_away", "balance_unknown"].includes(kind)) return [look(lanePage(name), `Lane ${name}`)];
  if (kind === "listener_unread" || kind.startsWith("node_")) return [look("#/listeners", "Listeners")];
  return [];
}

/** A button that says what to do about what the doctor found, or without it leads to where it shows. */
const advice = (found, refresh, href) => (found ? press("What to do", () => advise(found, refresh, ...ways(found))) : href && look(href));

/** What the doctor alone can tell: the store, tools, deliveries, nodes and accounts. Pure, but for its buttons. */
export function doctors({ findings }, lanes, refresh) {
  const silent = findings.some((one) => one.kind === "node_silent" && one.level === "bad");
  // Where no node answers, that no node told something is no news.
  const isNews = ({ kind }) => !TOLD.has(kind) && !(silent && ["balance_unknown", "node_poor"].includes(kind));
  const lane = (name) => lanes.find((one) => one.name === name) ?? { name };
  return findings
    .filter(isNews)
    .filter(({ kind, name }) => kind !== "balance_low" || lane(name).status !== "unfunded")
    .map((one) => ({
      level: one.level === "bad" ? "bad" : "warn",
      key: `doctor ${one.kind} ${one.about}`,
      text: [h("strong", {}, capital(one.about)), ": ", shortened(one.found)],
      button: one.kind === "balance_low" ? press("Fund it", () => fund(lane(one.name), refresh)) : advice(one, refresh),
    }));
}

/** What is wrong with a listener, and what the doctor calls it; one at the head of a chain that stands still is not late. Pure. */
export function held(one) {
  if (one.state === "halted") return ["listener_halted", `stopped: ${one.detail ?? "a person must look"}`];
  if (one.state === "waits") return ["listener_waits", `waits: ${one.detail ?? "its chain does not answer"}`];
  if (one.behind_blocks > LATE_BLOCKS) return ["listener_behind", `is ${plural(one.behind_blocks, "block")} behind its chain`];
  if (one.behind_blocks === undefined && one.behind_ms > OLD_MS)
    return ["listener_old", `has read nothing newer than ${span(one.behind_ms)}`];
  return null;
}

/** Everything that does not go on by itself, worst first. */
export function attention({ counts, routes, lanes, listeners }, refresh) {
  const items = [];
  const found = diagnosis(refresh);
  for (const lane of lanes.filter((one) => one.status !== "active")) items.push(laneItem(lane, refresh));
  for (const lane of lanes.filter((one) => one.at_fee_cap !== undefined)) items.push(capItem(lane, refresh));
  const dead = counts.filter((found) => found.state === "dead");
  if (dead.length) items.push(deadItem(dead));
  for (const route of routes.filter((one) => one.paused)) {
    const waiting = counts.filter((one) => one.route === route.name && one.state === "queued").reduce((sum, one) => sum + one.requests, 0);
    items.push({
      level: "warn",
      key: `route ${route.name}`,
      text: ["Route ", routeLink(route.name), " is ", h("strong", {}, "paused"), waiting ? `; ${count(waiting)} wait for a worker` : ""],
      button: act("Resume", () => turn(route.name, "resume", refresh)),
    });
  }
  for (const one of listeners) {
    const [kind, trouble] = held(one) ?? [];
    if (!kind) continue;
    items.push({
      level: one.state === "halted" ? "bad" : "warn",
      key: `listener ${one.name}`,
      text: ["Listener ", h("strong", {}, one.name), ` ${trouble}`],
      button: advice(finding(kind, one.name), refresh, "#/listeners"),
    });
  }
  for (const route of routes) {
    const live = counts.filter((one) => one.route === route.name).reduce((sum, one) => sum + one.requests, 0);
    if (live >= route.capacity)
      items.push({
        level: "bad",
        key: `full ${route.name}`,
        text: ["Route ", routeLink(route.name), ` is full: ${count(live)} live requests, and it pushes back`],
        button: advice(finding("route_full", route.name), refresh, `#/routes/${encodeURIComponent(route.name)}`),
      });
  }
  items.push(...doctors(found, lanes, refresh));
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
    button: look(`#/dead${only}`, operates() ? "Review and retry" : "Review"),
  };
}

const ofLane = (lane, level, text, button) => ({
  level,
  key: `lane ${lane.name}`,
  text: ["Lane ", laneLink(lane.name), " ", text].flat(),
  button,
});

function laneItem(lane, refresh) {
  const resume = act("Resume", () => resumeLane(lane.name, refresh)) || look(lanePage(lane.name));
  switch (lane.status) {
    case "paused":
      return ofLane(lane, "warn", ["is ", h("strong", {}, "paused"), `: ${lane.reason ?? ""}`], resume);
    case "quarantined":
      return ofLane(lane, "warn", ["is in ", h("strong", {}, "quarantine"), ` until ${date(lane.until_ms)}`], resume);
    case "unfunded": {
      const button = press("Fund it", () => fund(lane, refresh));
      return ofLane(lane, "bad", [h("strong", {}, "cannot pay"), `: ${lane.reason ?? ""}`], button);
    }
    default: {
      const button = look(lanePage(lane.name), operates() ? "Rebuild" : "Look");
      return ofLane(lane, "bad", [h("strong", {}, "is stopped"), ": the chain has seen more of it than the store remembers"], button);
    }
  }
}

/** A slot that pays all that it may holds up all above it. */
function capItem(lane, refresh) {
  const text = [h("strong", {}, `pays all that it may`), ` on slot ${count(lane.at_fee_cap)}, and is not mined; what is above it waits`];
  const button = advice(finding("fee_cap", lane.name), refresh, lanePage(lane.name, lane.at_fee_cap));
  return { ...ofLane(lane, "bad", text, button), key: `cap ${lane.name}` };
}

/** How old what only the doctor tells is, for whoever has just mended it. */
const aged = (looked_at_ms) =>
  looked_at_ms !== undefined &&
  h("p", { class: "quiet aged", title: date(looked_at_ms) }, `Nodes, accounts and tools were asked ${ago(looked_at_ms)}.`);

/** `still`: the station that stands still, if one does: nothing may be broken, and still all is not well. */
export const list = (items, looked_at_ms, still) =>
  items.length === 0
    ? h(
        "div",
        {},
        still
          ? h("p", {}, h("strong", {}, `${still.name} stands still: `), `${count(still.backlog)} ${still.says}. Nothing is known to be broken.`)
          : h("p", { class: "all-well" }, "Nothing needs you."),
        aged(looked_at_ms),
      )
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
        aged(looked_at_ms),
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
