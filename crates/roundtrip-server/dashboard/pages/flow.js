// The path of a request as a picture: how many are where, how fast they move, and where they pile up.

import { h } from "../dom.js";
import { about, count, now, plural, rate, short } from "../words.js";

/** How many of the newest full seconds a rate is of. */
const SECONDS = 10;
/** A station is a bottleneck if what waits there needs longer than this to get through. */
const LATE_S = 5;

const STATIONS = [
  {
    name: "Inbox",
    says: "waits for a worker",
    states: ["held", "queued"],
    late: ["queued"],
    out: "leased",
    href: "#/requests?state=held,queued",
  },
  { name: "Workers", says: "being worked on", states: ["leased"], late: [], out: "answered", href: "#/requests?state=leased" },
  {
    name: "Outbox",
    says: "waits to be sent",
    states: ["waiting", "ready"],
    late: ["ready"],
    out: "sent",
    href: "#/requests?state=waiting,ready",
  },
  {
    name: "Sender",
    says: "on its way",
    states: ["assigned", "included"],
    late: ["assigned"],
    out: "settled",
    href: "#/requests?state=assigned,included",
  },
];

/** The rate of each step, from the newest full seconds of a history. */
export function rates(history) {
  const mean = (column) => {
    const newest = column.slice(-SECONDS - 1, -1);
    return newest.length ? newest.reduce((sum, n) => sum + n, 0) / (newest.length * (history.step_ms / 1000)) : 0;
  };
  const found = Object.fromEntries(
    ["admitted", "leased", "answered", "assigned", "settled", "failed", "died"].map((step) => [step, mean(history[step])]),
  );
  // What has no lane is sent when it settles.
  return { ...found, sent: Math.max(found.assigned, found.settled) };
}

const oldest = (counts) => (counts.length ? Math.min(...counts.map((one) => one.oldest_at_ms)) : null);

/** The stations with their backlog, and which of them holds the others up. Pure. */
export function stations(counts, speed) {
  const found = STATIONS.map((station) => {
    const here = counts.filter((one) => station.states.includes(one.state));
    const late = counts.filter((one) => station.late.includes(one.state));
    const sum = (list) => list.reduce((all, one) => all + one.requests, 0);
    return {
      ...station,
      backlog: sum(here),
      rate: speed[station.out] ?? 0,
      oldest_at_ms: oldest(late) ?? oldest(here),
      drain_s: sum(late) ? sum(late) / Math.max(speed[station.out] ?? 0, 0.05) : 0,
    };
  });
  const worst = found.reduce((a, b) => (b.drain_s > a.drain_s ? b : a));
  worst.bottleneck = worst.drain_s > LATE_S && now() - worst.oldest_at_ms > LATE_S * 1000;
  return found;
}

/** An arrow as thick as its traffic. */
const arrow = (perSecond) =>
  h(
    "div",
    { class: `arrow${perSecond > 0 ? " moves" : ""}` },
    h("span", { class: "rate" }, rate(perSecond)),
    h(
      "svg",
      { viewBox: "0 0 60 12", preserveAspectRatio: "none", "aria-hidden": "true" },
      h("line", { x1: 0, y1: 6, x2: 60, y2: 6, "stroke-width": Math.min(6, 1 + Math.log10(1 + perSecond) * 2).toFixed(1) }),
    ),
  );

const card = (title, href, figure, said, extra, kind = "") =>
  h(
    "a",
    { class: `station ${kind}`, href },
    h("span", { class: "name" }, title),
    h("span", { class: "figure" }, figure),
    h("span", { class: "quiet" }, said),
    extra,
  );

export function flow(counts, speed, listeners) {
  const found = stations(counts, speed);
  const lagging = listeners.filter((one) => one.state === "halted" || one.state === "waits").length;
  const confirmed = counts.filter((one) => one.state === "confirmed").reduce((sum, one) => sum + one.requests, 0);
  return h(
    "div",
    { class: "flow", role: "group", "aria-label": "From listeners to settled" },
    card(
      "Listeners",
      "#/listeners",
      count(listeners.length),
      listeners.length ? (lagging ? `${lagging} held up` : "reading") : "requests come by calls",
      null,
      lagging ? "warn" : "",
    ),
    arrow(speed.admitted),
    found.map((station) => [
      card(
        station.name,
        station.href,
        short(station.backlog),
        station.says,
        h(
          "span",
          { class: "age" },
          station.bottleneck ? [h("strong", {}, "bottleneck"), ", "] : "",
          station.oldest_at_ms ? `oldest ${about(now() - station.oldest_at_ms)}` : "empty",
        ),
        station.bottleneck ? "bottleneck" : "",
      ),
      arrow(station.rate),
    ]),
    card(
      "Settled",
      "#/requests?state=ended",
      rate(speed.settled),
      confirmed ? `${plural(confirmed, "more", "more")} until final` : "and remembered",
    ),
  );
}
