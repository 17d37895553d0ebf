// The path of a request as a picture: how many are where, how fast they move, and where they pile up.

import { h } from "../dom.js";
import { icon } from "../parts.js";
import { held } from "./attention.js";
import { about, count, now, rate, short, stateOn } from "../words.js";

/** How many of the newest full seconds a rate is of. */
const SECONDS = 10;
/** A station is a bottleneck if what waits there needs longer than this to get through. */
const LATE_S = 5;
/** A rate below which a backlog is taken to stand still, for each second. */
const STILL = 0.05;

const STATIONS = [
  {
    name: "Inbox",
    says: "wait for a worker",
    picture: "inbox",
    states: ["held", "queued"],
    late: ["queued"],
    out: "leased",
    href: "#/requests?state=held,queued",
  },
  {
    name: "Workers",
    says: "being worked on",
    picture: "work",
    states: ["leased"],
    late: [],
    out: "answered",
    href: "#/requests?state=leased",
  },
  {
    name: "Outbox",
    says: "wait to be sent",
    picture: "outbox",
    states: ["waiting", "ready"],
    late: ["ready"],
    out: "sent",
    href: "#/requests?state=waiting,ready",
  },
  {
    name: "Sender",
    says: "on their way",
    picture: "lanes",
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
    ["admitted", "leased", "answered", "assigned", "settled", "failed", "died", "kept"].map((step) => [step, mean(history[step])]),
  );
  // What has no lane is sent when it settles; what is kept is never sent.
  return { ...found, sent: Math.max(found.assigned, found.settled - found.kept) };
}

const oldest = (counts) => (counts.length ? Math.min(...counts.map((one) => one.oldest_at_ms)) : null);
const sum = (list) => list.reduce((all, one) => all + one.requests, 0);

/** Counts with answers that are kept for whoever asks told apart: they wait for nobody. Pure. */
export function told(counts, routes) {
  const byName = new Map(routes.map((route) => [route.name, route]));
  return counts.map((one) => ({ ...one, state: stateOn(byName.get(one.route), one.state) }));
}

/** The stations with their backlog, and which of them holds the others up. Pure. */
export function stations(counts, speed) {
  const found = STATIONS.map((station) => {
    const here = counts.filter((one) => station.states.includes(one.state));
    const late = counts.filter((one) => station.late.includes(one.state));
    return {
      ...station,
      backlog: sum(here),
      rate: speed[station.out] ?? 0,
      oldest_at_ms: oldest(late) ?? oldest(here),
      drain_s: sum(late) ? sum(late) / Math.max(speed[station.out] ?? 0, STILL) : 0,
    };
  });
  const worst = found.reduce((a, b) => (b.drain_s > a.drain_s ? b : a));
  worst.bottleneck = worst.drain_s > LATE_S && now() - worst.oldest_at_ms > LATE_S * 1000;
  return found;
}

/** The station that holds the others up, if nothing leaves it. Pure. */
export const still = (counts, speed) => stations(counts, speed).find((station) => station.bottleneck && station.rate <= STILL);

/** An arrow as thick as its traffic. */
const arrow = (perSecond) =>
  h(
    "div",
    { class: `arrow${perSecond > 0 ? " moves" : ""}` },
    h("span", { class: "rate" }, rate(perSecond)),
    h(
      "svg",
      { viewBox: "0 0 60 12", preserveAspectRatio: "none", "aria-hidden": "true" },
      h("line", { x1: 0, y1: 6, x2: 60, y2: 6, "stroke-width": Math.min(6, 1.5 + Math.log10(1 + perSecond) * 2).toFixed(1) }),
    ),
  );

const card = ({ title, href, picture, figure, said, extra, chip, kind = "", level }) => {
  const gauge = level !== undefined && h("span", { class: "gauge", "aria-hidden": "true" }, h("span", {}));
  if (gauge) gauge.firstChild.style.inlineSize = `${Math.round(100 * level)}%`;
  return h(
    "a",
    { class: `station ${kind}`, href },
    h("span", { class: "name" }, icon(picture), title),
    chip && h("span", { class: "chip" }, chip),
    h("span", { class: "figure" }, figure),
    h("span", { class: "quiet" }, said),
    h("span", { class: "age" }, extra),
    gauge,
  );
};

/** How full a station looks beside the fullest, by orders of magnitude. */
const level = (backlog, most) => (backlog ? Math.max(0.06, Math.log10(1 + backlog) / Math.log10(1 + Math.max(most, 10))) : 0);

export function flow(counts, speed, listeners) {
  const found = stations(counts, speed);
  const most = Math.max(...found.map((station) => station.backlog));
  const lagging = listeners.filter(held).length;
  const [confirmed, kept] = ["confirmed", "kept"].map((state) => sum(counts.filter((one) => one.state === state)));
  return h(
    "div",
    { class: "flow", role: "group", "aria-label": "From listeners to settled" },
    card({
      title: "Listeners",
      href: "#/listeners",
      picture: "listeners",
      figure: count(listeners.length),
      said: listeners.length ? (lagging ? `${count(listeners.length - lagging)} reading` : "reading") : "requests come by calls",
      extra: lagging ? `${count(lagging)} held up` : "",
      kind: lagging ? "warn" : "",
    }),
    arrow(speed.admitted),
    found.map((station) => [
      card({
        title: station.name,
        href: station.href,
        picture: station.picture,
        figure: short(station.backlog),
        said: station.says,
        chip: station.bottleneck && "bottleneck",
        extra: [
          station.oldest_at_ms ? `oldest ${about(now() - station.oldest_at_ms)}` : "empty",
          station.bottleneck && (station.rate > STILL ? `, clears in ${about(station.drain_s * 1000)}` : ", stands still"),
        ],
        kind: station.bottleneck ? "bottleneck" : "",
        level: level(station.backlog, most),
      }),
      arrow(station.rate),
    ]),
    card({
      title: "Settled",
      href: "#/requests?state=ended",
      picture: "settled",
      figure: rate(speed.settled),
      said: kept ? `${short(kept)} kept for whoever asks` : "and remembered",
      extra: confirmed ? `${short(confirmed)} not final yet` : "",
      kind: "end",
    }),
  );
}
