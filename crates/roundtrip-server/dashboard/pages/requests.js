// Requests: found by id, transaction, route, state or error, a page at a time.

import { h } from "../dom.js";
import { Problem, at, get } from "../api.js";
import { fault } from "../faults.js";
import { badge, command, copyable, empty, head, laneLink, requestCell, routeLink, section, shortened, slotLink, table } from "../parts.js";
import { STATES, ago, brief, count, plural, span } from "../words.js";
import { called } from "./lanes.js";

const PAGE = 100;
const LIVE = ["held", "queued", "leased", "waiting", "ready", "assigned", "included", "confirmed", "dead"];

const SAYS = {
  live: "Everything that has not ended, oldest first.",
  ended: "What ended lately, newest first.",
  transaction: "By the hash of a transaction.",
};

/** What somebody looks for: an id or a hash, the beginning of an id, or words of an error. Pure. */
export function meaning(text) {
  const digits = text.trim().replace(/^0x/i, "").toLowerCase();
  if (/^[0-9a-f]{64}$/.test(digits)) return { whole: digits };
  if (/^[0-9a-f]{4,63}$/.test(digits) && /\d/.test(digits))
    return { id_prefix: digits.slice(0, digits.length - (digits.length % 2)), begins: digits };
  return { error: text.trim() };
}

export function page({ query, refresh }) {
  const wanted = { q: query.get("q") ?? "", route: query.get("route") ?? "", state: query.get("state") ?? "" };
  /** What was loaded beyond the first page. */
  let more = { requests: [], next: undefined };
  let loading = false;
  const go = (change) => {
    const next = Object.entries({ ...wanted, ...change }).filter(([, value]) => value);
    location.hash = `#/requests${next.length ? `?${new URLSearchParams(next)}` : ""}`;
  };
  const path = (after) => {
    const { id_prefix, error } = meaning(wanted.q);
    return at(["requests"], { route: wanted.route, state: wanted.state, id_prefix, error, after, limit: PAGE });
  };
  const fits = (request) => request.id.startsWith(meaning(wanted.q).begins ?? "");

  async function load() {
    const { routes } = await get(at(["routes"]));
    const { whole } = meaning(wanted.q);
    if (whole) return { routes, ...(await byHash(whole)) };
    if (wanted.state === "ended") return { routes, ended: (await get(at(["ended"], { route: wanted.route, limit: 500 }))).requests };
    const first = await get(path());
    return { routes, requests: first.requests.filter(fits), next: first.next };
  }

  async function loadMore(next) {
    loading = true;
    refresh();
    try {
      const found = await get(path(next));
      more = { requests: [...more.requests, ...found.requests.filter(fits)], next: found.next ?? null };
    } finally {
      loading = false;
      refresh();
    }
  }

  const rowsOf = (data) => {
    const seen = new Set(data.requests.map((request) => request.id));
    return [...data.requests, ...more.requests.filter((request) => !seen.has(request.id))];
  };

  return {
    title: "Requests",
    load,
    view: (data) => {
      const next = more.next === undefined ? data.next : more.next;
      return [
        head("Requests", data.transaction ? SAYS.transaction : (SAYS[wanted.state] ?? SAYS.live)),
        filters(wanted, data.routes, go),
        data.unknown
          ? unknown(data.unknown)
          : data.ended
            ? endedTable(data.ended)
            : data.transaction
              ? transaction(data.transaction)
              : rowsOf(data).length === 0 && !next
                ? nothing(wanted)
                : [
                    requestsTable(rowsOf(data), data.routes),
                    h(
                      "p",
                      { class: "more" },
                      h("span", { class: "quiet" }, `${count(rowsOf(data).length)} shown`),
                      next &&
                        h(
                          "button",
                          { type: "button", disabled: loading, onclick: () => loadMore(next) },
                          loading ? "Loading" : "Show more",
                        ),
                    ),
                  ],
      ];
    },
    after: (root) => {
      if (!query.get("focus")) return;
      query.delete("focus");
      root.querySelector("#search")?.focus();
    },
  };
}

const missing = (error) => error instanceof Problem && error.status === 404;

/** A request by its id, which is opened; else what a transaction of this hash asks for and carries. */
async function byHash(hash) {
  try {
    await get(at(["requests", hash]));
    location.replace(`#/requests/${hash}`);
    // This page is over.
    return await new Promise(() => {});
  } catch (error) {
    if (!missing(error)) throw error;
  }
  try {
    return { transaction: await get(at(["transactions", hash])) };
  } catch (error) {
    if (missing(error)) return { unknown: { hash } };
    if (error instanceof Problem && error.status === 503) return { unknown: { hash, silent: error.message } };
    throw error;
  }
}

const unknown = ({ hash, silent }) =>
  fault({
    picture: silent ? "away" : "lost",
    heading: "h2",
    title: silent ? "This cannot be told now" : "Nothing is known by this hash",
    said: silent
      ? shortened(silent)
      : [copyable(hash, brief(hash, 10)), " is neither a request nor a transaction that asks or answers here."],
    reasons: silent
      ? ["What a transaction asks for is read from its chain. It is searched for again by itself."]
      : [
          "A transaction that asks is found while its chain shows its events, and only on chains that routes listen to.",
          "One that answers is found while its slot is not final, and after that as long as this process remembers it.",
          "A request that ended is found by its id for as long as its route keeps receipts.",
        ],
    next: [
      h("a", { class: "button primary", href: "#/requests" }, "All requests"),
      h("a", { class: "button", href: "#/listeners" }, "How far listeners are"),
    ],
  });

const transaction = (found) => [
  section(
    "Transaction",
    null,
    h(
      "div",
      { class: "card" },
      h(
        "header",
        {},
        copyable(found.hash, brief(found.hash, 12)),
        found.lane &&
          h(
            "span",
            { class: "quiet" },
            "on slot ",
            slotLink(found.lane, found.nonce),
            " of ",
            laneLink(found.lane),
          ),
        !found.lane && found.requests.length > 0 && h("span", { class: "quiet" }, "its slot is final"),
        found.asks[0] && h("span", { class: "quiet" }, `in block ${count(found.asks[0].height)} of ${found.asks[0].chain}`),
      ),
      found.transaction && called(found.transaction),
    ),
  ),
  found.asks.length > 0 &&
    section(
      "It asks for",
      h("span", { class: "quiet" }, plural(found.asks.length, "request")),
      table(
        [{ name: "Request" }, { name: "Route" }, { name: "State" }],
        found.asks.map((one) => ({
          key: one.id,
          cells: [
            one.state ? requestCell(one.id) : h("span", { class: "mono", title: one.id }, brief(one.id)),
            routeLink(one.route),
            one.state ? badge(one.state) : h("span", { class: "quiet" }, "not stored: not read yet, or forgotten since it ended"),
          ],
        })),
        "Requests that it asks for",
      ),
    ),
  (found.requests.length > 0 || found.lane) &&
    section(
      "It answers",
      h("span", { class: "quiet" }, plural(found.requests.length, "request")),
      found.requests.length
        ? table(
            [{ name: "Request" }],
            found.requests.map((id) => ({ key: id, cells: [requestCell(id)] })),
            "Requests that it answers",
          )
        : h("p", { class: "quiet" }, "Nothing: it only uses a slot up."),
    ),
];

function filters(wanted, routes, go) {
  const search = (event) => {
    event.preventDefault();
    go({ q: new FormData(event.target).get("q").trim() });
  };
  const option = (value, name, chosen) => h("option", { value, selected: value === chosen }, name);
  const select = (name, label, chosen, options) =>
    h(
      "label",
      { class: "pick" },
      h("span", { class: "unseen" }, label),
      h("select", { value: chosen, onchange: (event) => go({ [name]: event.target.value }) }, options),
    );
  const states = [...LIVE.map((state) => [state, STATES[state][0]]), ["ended", "ended lately"]];
  if (wanted.state && !states.some(([state]) => state === wanted.state))
    states.unshift([
      wanted.state,
      wanted.state
        .split(",")
        .map((state) => STATES[state]?.[0] ?? state)
        .join(" or "),
    ]);
  return h(
    "form",
    { class: "filters", role: "search", onsubmit: search },
    h(
      "label",
      { class: "pick grow" },
      h("span", { class: "unseen" }, "Search"),
      h("input", {
        id: "search",
        name: "q",
        type: "search",
        value: wanted.q,
        placeholder: "Id, hash of a transaction, or words of an error",
        spellcheck: "false",
      }),
    ),
    select("route", "Route", wanted.route, [
      option("", "All routes", wanted.route),
      routes.map(({ name }) => option(name, name, wanted.route)),
    ]),
    select("state", "State", wanted.state, [
      option("", "All states", wanted.state),
      states.map(([state, name]) => option(state, name, wanted.state)),
    ]),
    h("button", { type: "submit" }, "Search"),
  );
}

export const requestsTable = (requests, routes) =>
  table(
    [
      { name: "Request" },
      { name: "Route" },
      { name: "State" },
      { name: "Came in", number: true },
      { name: "Attempts", number: true },
      { name: "Where, or what went wrong" },
    ],
    requests.map((request) => ({
      key: request.id,
      cells: [
        requestCell(request.id),
        request.route,
        badge(
          request.state,
          routes.find((route) => route.name === request.route),
        ),
        ago(request.admitted_at_ms),
        count(request.attempts),
        whereabouts(request),
      ],
    })),
    "Requests",
  );

function whereabouts(request) {
  if (request.worker) return ["with ", request.worker];
  if (request.lane)
    return [laneLink(request.lane), ", slot ", slotLink(request.lane, request.nonce)];
  if (request.error) return h("span", { class: "error-text", title: request.error.text }, request.error.text);
  return "";
}

const endedTable = (ended) =>
  ended.length === 0
    ? empty("Nothing has ended since this process began to listen.", "What ended before is found by its id.")
    : table(
        [{ name: "Request" }, { name: "Route" }, { name: "End" }, { name: "Ended", number: true }, { name: "Took", number: true }],
        ended.map((one) => ({
          key: one.id + one.ended_at_ms,
          cells: [
            requestCell(one.id),
            one.route ? routeLink(one.route) : "–",
            badge(one.state),
            ago(one.ended_at_ms),
            one.admitted_at_ms ? span(one.ended_at_ms - one.admitted_at_ms) : "–",
          ],
        })),
        "Requests that ended",
      );

function nothing(wanted) {
  if (wanted.q || wanted.route || wanted.state)
    return empty(
      "No live request fits.",
      "What has ended is found by its whole id.",
      h("a", { class: "button", href: "#/requests" }, "Show all"),
    );
  return empty(
    "No request is live.",
    "Requests come from chains, timers and calls. Submit one:",
    command(`curl -X POST ${location.origin}/v1/routes/ROUTE/requests -d '{"n": 7}'`),
  );
}
