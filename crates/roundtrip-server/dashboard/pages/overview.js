// Everything at a glance: what needs a person, where requests are, and how fast they move.

import { h } from "../dom.js";
import { at, get } from "../api.js";
import { box, chosenRange, drawHistory, ranges } from "../chart.js";
import { command, empty, head, routeLink, section, shares, status, table } from "../parts.js";
import { age, count, plural } from "../words.js";
import { attention, list } from "./attention.js";
import { lookedAt } from "./doctor.js";
import { flow, rates, still, told } from "./flow.js";

const NOW_MS = 30_000;

export function page({ refresh }) {
  return {
    title: "Overview",
    load: async () => {
      const [counts, routes, lanes, listeners, recent, history] = await Promise.all([
        get(at(["counts"])),
        get(at(["routes"])),
        get(at(["lanes"])),
        get(at(["listeners"])),
        get(at(["history"], { last_ms: NOW_MS })),
        get(at(["history"], { last_ms: chosenRange() })),
      ]);
      return {
        counts: told(counts.counts, routes.routes),
        routes: routes.routes,
        lanes: lanes.lanes,
        listeners: listeners.listeners,
        recent,
        history,
      };
    },
    view: (data) => {
      if (data.routes.length === 0)
        return [
          head("Overview"),
          empty(
            "No route is defined yet.",
            "A route says where requests come from and where their answers go. Add one to the configuration and start the program again:",
            command('[routes.square]\nto = "caller"\nidentity = "content"\n\n[destinations.caller.keep]\nat_least = "1h"'),
          ),
        ];
      const live = data.counts.reduce((sum, one) => sum + one.requests, 0);
      const speed = rates(data.recent);
      return [
        head("Overview", `${plural(live, "live request")} on ${plural(data.routes.length, "route")}`),
        list(attention(data, refresh), lookedAt(), still(data.counts, speed)),
        section("Flow", null, flow(data.counts, speed, data.listeners)),
        section(
          "Over time",
          ranges(refresh),
          h(
            "div",
            { class: "charts" },
            h("figure", {}, h("figcaption", {}, "Throughput"), box("throughput", "Requests that came in, settled and failed, over time")),
            h("figure", {}, h("figcaption", {}, "From seen to settled"), box("latency", "How long requests took, over time")),
          ),
        ),
        section("Routes", h("a", { href: "#/routes" }, "All routes"), routesTable(data), partsLegend(data.counts)),
      ];
    },
    after: (root, data) => drawHistory(root, data.history),
  };
}

/** Which part of a bar a state belongs to. */
export const PARTS = [
  ["waits for a worker", "inbox", ["held", "queued"]],
  ["with workers", "work", ["leased"]],
  ["waits to be sent", "outbox", ["waiting", "ready"]],
  ["sent", "sender", ["assigned", "included", "confirmed"]],
  ["kept for whoever asks", "kept", ["kept"]],
  ["dead", "dead", ["dead"]],
];

export const parts = (counts) =>
  PARTS.map(([name, kind, states]) => ({
    name,
    kind,
    count: counts.filter((one) => states.includes(one.state)).reduce((sum, one) => sum + one.requests, 0),
  }));

/** What the colours of the bars say, of those that are there. */
export const partsLegend = (counts) =>
  h(
    "ul",
    { class: "legend" },
    parts(counts)
      .filter((part) => part.count > 0)
      .map((part) => h("li", {}, h("span", { class: `swatch ${part.kind}` }), part.name)),
  );

export function routesTable(data) {
  return table(
    [
      { name: "Route" },
      { name: "State" },
      { name: "Where its requests are" },
      { name: "Live", number: true },
      { name: "Oldest", number: true },
      { name: "Dead", number: true },
    ],
    data.routes.map((route) => {
      const own = data.counts.filter((one) => one.route === route.name);
      const dead = own.filter((one) => one.state === "dead").reduce((sum, one) => sum + one.requests, 0);
      const alive = own.filter((one) => one.state !== "dead");
      return {
        key: route.name,
        cells: [
          routeLink(route.name),
          route.paused ? status("paused", "warn") : status("running", "good"),
          shares(parts(own), route.name),
          count(alive.reduce((sum, one) => sum + one.requests, 0)),
          alive.length ? age(Math.min(...alive.map((one) => one.oldest_at_ms))) : "–",
          dead ? h("a", { href: `#/dead?route=${encodeURIComponent(route.name)}` }, count(dead)) : "0",
        ],
      };
    }),
    "Routes",
  );
}
