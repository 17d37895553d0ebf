// Routes: their policies, where their requests are, and how fast they move.

import { h } from "../dom.js";
import { at, get } from "../api.js";
import { box, chosenRange, drawHistory, ranges } from "../chart.js";
import { act, badge, empty, facts, head, section, shares, status, table, trail } from "../parts.js";
import { age, count, plural, span } from "../words.js";
import { noSuch } from "../faults.js";
import { told } from "./flow.js";
import { turn } from "./orders.js";
import { parts, partsLegend, routesTable } from "./overview.js";

export const page = (given) => (given.rest.length ? one(given, given.rest[0]) : all());

const all = () => ({
  title: "Routes",
  load: async () => {
    const [{ routes }, { counts }] = await Promise.all([get(at(["routes"])), get(at(["counts"]))]);
    return { routes, counts: told(counts, routes) };
  },
  view: (data) => [
    head("Routes", plural(data.routes.length, "route")),
    data.routes.length
      ? [routesTable(data), partsLegend(data.counts)]
      : empty("No route is defined yet.", "Add one to the configuration; docs/configuration.md has every key."),
  ],
});

/** The requests of a route in a state; what is kept is ready, in the words of the API. */
const inState = (route, state) => `#/requests?route=${encodeURIComponent(route)}&state=${state === "kept" ? "ready" : state}`;

function one({ refresh }, name) {
  return {
    title: name,
    load: async () => {
      const [routes, counts, history] = await Promise.all([
        get(at(["routes"])),
        get(at(["counts"])),
        get(at(["history"], { route: name, last_ms: chosenRange() })),
      ]);
      return {
        route: routes.routes.find((route) => route.name === name),
        counts: told(counts.counts, routes.routes).filter((found) => found.route === name),
        history,
      };
    },
    view: ({ route, counts }) => {
      if (!route) return noSuch("route", name, "#/routes");
      const live = counts.reduce((sum, found) => sum + found.requests, 0);
      return [
        trail("#/routes", "Routes"),
        head(
          name,
          [route.paused ? status("paused", "warn") : status("running", "good"), ` ${plural(live, "live request")}`],
          h("a", { class: "button", href: `#/requests?route=${encodeURIComponent(name)}` }, "Requests"),
          route.paused ? act("Resume", () => turn(name, "resume", refresh), "primary") : act("Pause", () => turn(name, "pause", refresh)),
        ),
        section(
          "Where its requests are",
          null,
          shares(parts(counts), name),
          partsLegend(counts),
          counts.length
            ? table(
                [{ name: "State" }, { name: "Requests", number: true }, { name: "Oldest", number: true }],
                counts.map((found) => ({
                  key: found.state,
                  cells: [
                    h("a", { href: inState(name, found.state) }, badge(found.state)),
                    count(found.requests),
                    age(found.oldest_at_ms),
                  ],
                })),
                "Requests by state",
              )
            : h("p", { class: "quiet" }, "None at the moment: everything that came in has ended."),
        ),
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
        section("Policies", null, policies(route)),
      ];
    },
    after: (root, data) => data.route && drawHistory(root, data.history),
  };
}

const ORDERS = {
  fifo: "as they came in",
  priority: "higher priority first",
  keyed_fifo: "as they came in, key by key",
  deadline: "earliest deadline first",
  random: "in no order",
};
const REPEATS = {
  attach: "joins the live request",
  drop: "changes nothing",
  rearm: "joins, and wakes a dead letter",
  new_generation: "is a request of its own",
  vote: "counts as a vote",
};
const IDENTITIES = { given: "the id it is given", content: "its content", fields: "named fields of it" };
const NOBODY = "nobody: an answer settles it";
const DELIVERIES = { transactions: ", as transactions", webhook: ", by a webhook", list: ", a list", keep: ": kept for whoever asks" };
const GATES = { seen: "as soon as it is seen", final: "when its origin is final" };

const policies = (route) =>
  facts([
    ["Answers go to", route.destination ? `${route.destination}${DELIVERIES[route.delivery] ?? ""}` : NOBODY],
    ["Work starts", GATES[route.work_on]],
    ["Answers are published", GATES[route.publish_on]],
    ["Handed out", ORDERS[route.order]],
    ["The same request", IDENTITIES[route.identity]],
    ["A repeat", REPEATS[route.on_duplicate]],
    ["Takes at most", plural(route.capacity, "live request")],
    ["A lease lasts", span(route.lease_ms)],
    ["Dead after", `${plural(route.attempts_max, "failed attempt")}, or ${plural(route.crashes_max, "lost worker")}`],
    ["Waits after a failure", route.backoff_max_ms ? `${span(route.backoff_first_ms)}, up to ${span(route.backoff_max_ms)}` : "not at all"],
    ["Rate", route.rate ? `${count(route.rate.count)} in ${span(route.rate.per_ms)}` : "as fast as workers ask"],
    ["A dead letter waits", span(route.dead_ms)],
  ]);
