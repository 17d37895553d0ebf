// Routes as queues, in the words of Bull's Arena, for people who come from there.

import { h } from "../dom.js";
import { at, get, getRequest, post } from "../api.js";
import { act, badge, confirm, empty, head, json, requestLink, status, table, trail } from "../parts.js";
import { noSuch } from "../faults.js";
import { ago, capital, count, plural, span, stateOn } from "../words.js";
import { turn } from "./orders.js";

/** Arena's states, and which of ours they are. */
const TABS = [
  ["waiting", ["queued"]],
  ["active", ["leased"]],
  ["delayed", ["held"]],
  ["answered", ["waiting", "ready", "assigned", "included", "confirmed"]],
  ["failed", ["dead"]],
  ["completed", null],
];
/** Jobs that are shown at once. */
const JOBS = 50;
/** How those ended that are completed: what was given up is not. */
const DONE = "settled,elsewhere";
/** Those that ended, of which only little is shown. */
const ENDED = 100;
const NEXT = {
  waiting: "Nothing waits for a worker.",
  active: "No worker has anything of it in hand.",
  delayed: "Nothing is put off.",
  answered: "No answer is on its way.",
  failed: "Nothing failed for good.",
  completed: "Nothing was done since this process began to listen.",
};

export const page = (given) => (given.rest.length ? one(given, given.rest[0], given.rest[1] ?? "waiting") : all());

/** Answers that are kept for whoever asks are done: in Arena's words they are completed. */
const statesOf = (route, states) => states.filter((state) => stateOn(route, state) !== "kept");
const sum = (counts, states) => counts.filter((found) => states.includes(found.state)).reduce((total, found) => total + found.requests, 0);
/** How many jobs of a queue a tab has: those that are done and kept are completed, too. Pure. */
function jobsIn(tab, route, counts, totals) {
  const states = TABS.find(([known]) => known === tab)[1];
  if (states) return sum(counts, statesOf(route, states));
  const ended = totals.find((one) => one.route === route.name)?.requests ?? 0;
  return ended + (route.delivery === "keep" ? sum(counts, ["ready"]) : 0);
}
/** What a count of those that are completed is of. */
const SINCE = "Since this process began to read the journal, or kept for whoever asks";
const link = (queue, tab) => `#/queues/${encodeURIComponent(queue)}/${tab}`;

const all = () => ({
  title: "Queues",
  load: async () => {
    const [routes, counts, ended] = await Promise.all([get(at(["routes"])), get(at(["counts"])), get(at(["ended"], { limit: 1 }))]);
    return { routes: routes.routes, counts: counts.counts, totals: ended.totals };
  },
  view: ({ routes, counts, totals }) => [
    head("Queues", "Every route is a queue. This is the same as Routes, in the words of Bull and Arena."),
    routes.length === 0
      ? empty("No queue is defined yet.", "A route in the configuration is one.")
      : table(
          [
            { name: "Queue" },
            { name: "State" },
            ...TABS.map(([tab]) => ({ name: capital(tab), number: true })),
          ],
          routes.map((route) => {
            const own = counts.filter((found) => found.route === route.name);
            return {
              key: route.name,
              cells: [
                h("a", { href: link(route.name, "waiting") }, route.name),
                route.paused ? status("paused", "warn") : status("running", "good"),
                ...TABS.map(([tab]) => {
                  const n = jobsIn(tab, route, own, totals);
                  return h("a", { href: link(route.name, tab), class: n === 0 && "zero", title: tab === "completed" && SINCE }, count(n));
                }),
              ],
            };
          }),
          "Queues",
        ),
  ],
});

function one({ refresh }, name, tab) {
  /** Jobs that somebody opened, by id. */
  const opened = new Map();
  const toggle = (id) => async (event) => {
    if (!event.currentTarget.open || opened.has(id)) return;
    opened.set(id, await getRequest(id).catch((error) => error));
    refresh();
  };
  const states = TABS.find(([known]) => known === tab)?.[1];
  return {
    title: `Queue ${name}`,
    load: async () => {
      const [{ routes }, { counts }] = await Promise.all([get(at(["routes"])), get(at(["counts"]))]);
      const route = routes.find((found) => found.name === name);
      const kept = route?.delivery === "keep";
      const wanted = tab === "completed" ? kept && ["ready"] : states && statesOf(route, states);
      const live = wanted?.length ? await get(at(["requests"], { route: name, state: wanted.join(), limit: JOBS })) : { requests: [] };
      const ended = await get(at(["ended"], { route: name, state: DONE, limit: tab === "completed" ? ENDED : 1 }));
      return {
        route,
        counts: counts.filter((one) => one.route === name),
        jobs: [...live.requests, ...(tab === "completed" ? ended.requests : [])],
        totals: ended.totals,
        more: live.next && wanted,
      };
    },
    view: ({ route, counts, totals, jobs, more }) => {
      if (!route) return noSuch("queue", name, "#/queues");
      return [
        trail("#/queues", "Queues"),
        head(
          name,
          route.paused ? status("paused", "warn") : plural(sum(counts, ["queued"]), "waiting job"),
          route.paused
            ? act("Resume queue", () => turn(name, "resume", refresh), "primary")
            : act("Pause queue", () => turn(name, "pause", refresh)),
          tab === "failed" && jobs.length > 0 && h("a", { class: "button", href: `#/dead?route=${encodeURIComponent(name)}` }, "By cause"),
        ),
        h(
          "nav",
          { class: "tabs", "aria-label": "Jobs" },
          TABS.map(([known]) =>
            h(
              "a",
              { href: link(name, known), "aria-current": known === tab && "page", title: known === "completed" && SINCE },
              known,
              h("span", { class: "quiet" }, count(jobsIn(known, route, counts, totals))),
            ),
          ),
        ),
        jobs.length === 0
          ? empty(NEXT[tab] ?? "There is no such state.")
          : h(
              "ul",
              { class: "jobs" },
              jobs.map((job) => jobView(job, route, opened, toggle, refresh)),
            ),
        more &&
          h("p", { class: "more" }, h("a", { href: `#/requests?route=${encodeURIComponent(name)}&state=${more.join()}` }, "All of them")),
      ];
    },
  };
}

function jobView(job, route, opened, toggle, refresh) {
  const found = opened.get(job.id);
  const mend = (remedy, title, kind) => async () => {
    const work = async () => {
      await post(at(["requests", job.id, remedy]));
      return "Done";
    };
    if (await confirm({ title, action: title.split(" ")[0], kind, work })) refresh();
  };
  return h(
    "li",
    { class: "card", "data-key": job.id },
    h(
      "details",
      { ontoggle: toggle(job.id) },
      h(
        "summary",
        {},
        h("span", { class: "mono" }, job.id.slice(0, 12)),
        badge(job.state, route),
        h(
          "span",
          { class: "quiet" },
          job.ended_at_ms
            ? `${ago(job.ended_at_ms)}${job.admitted_at_ms ? `, took ${span(job.ended_at_ms - job.admitted_at_ms)}` : ""}`
            : `came in ${ago(job.admitted_at_ms)}, ${plural(job.attempts, "attempt")}`,
        ),
        job.error && h("span", { class: "error-text" }, job.error.text),
      ),
      !found
        ? h("p", { class: "quiet" }, "Loading")
        : found instanceof Error
          ? h("p", { class: "trouble" }, found.message)
          : h(
              "div",
              { class: "beside" },
              h(
                "div",
                {},
                h("p", { class: "strong" }, "Data"),
                found.payload === undefined
                  ? h("p", { class: "quiet" }, "Gone: a store keeps it only while a job is live. Its page shows what is left.")
                  : json(found.texts.payload),
              ),
              found.response !== undefined && h("div", {}, h("p", { class: "strong" }, "Return value"), json(found.texts.response)),
            ),
      h(
        "p",
        { class: "actions" },
        requestLink(job.id),
        job.state === "dead" && [
          act("Retry", mend("retry", "Retry this job?", "primary")),
          act("Remove", mend("drop", "Remove this job?", "danger")),
        ],
        ["queued", "held"].includes(job.state) && act("Remove", mend("cancel", "Remove this job?", "danger")),
      ),
    ),
  );
}
