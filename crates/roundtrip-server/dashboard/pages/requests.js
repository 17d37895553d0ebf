// Requests: found by id, transaction, route, state or error, a page at a time.

import { h } from "../dom.js";
import { Problem, at, get, token } from "../api.js";
import { fault } from "../faults.js";
import { badge, command, copyable, empty, head, laneLink, requestCell, routeLink, section, shortened, slotLink, table } from "../parts.js";
import { STATES, ago, brief, capital, count, plural, span } from "../words.js";
import { called } from "./lanes.js";

const PAGE = 100;
/** The most that one call tells. */
const CALL_MAX = 1000;
const LIVE = ["held", "queued", "leased", "waiting", "ready", "assigned", "included", "confirmed", "dead"];

const SAYS = {
  live: "Everything that has not ended, oldest first.",
  ended: "What ended lately, newest first.",
  transaction: "By the hash of a transaction.",
  begins: "What is live, oldest first, and what ended lately, by the beginning of its id.",
};

/** What somebody looks for: an id or a hash, the ends of an id, words of an error (also in quotes), or either. Pure. */
export function meaning(text) {
  const words = text.trim();
  const quoted = /^"(.+)"$/.exec(words);
  if (quoted) return { error: quoted[1] };
  const digits = words.replace(/^0x/i, "").toLowerCase();
  if (/^[0-9a-f]{64}$/.test(digits)) return { whole: digits };
  // As ids are shown where there is little room.
  const [, begins, ends] = /^([0-9a-f]{2,})(?:…|\.\.\.)([0-9a-f]*)$/.exec(digits) ?? [];
  if (begins) return { begins, ends };
  return /^[0-9a-f]{3,63}$/.test(digits) ? { begins: digits, ends: "", error: words } : { error: words };
}

const hasEnds = ({ begins, ends }, id) => begins !== undefined && id.startsWith(begins) && id.endsWith(ends);

/** What to ask for, one after the other, and which of the told ones fit. Pure. */
function asks(sought) {
  const { begins, error } = sought;
  const byId = begins && { query: { id_prefix: begins.slice(0, begins.length & ~1) }, fits: ({ id }) => hasEnds(sought, id) };
  const byError = error !== undefined && { query: { error }, fits: () => true };
  return [byId, byError].filter(Boolean);
}

export function page({ query, refresh }) {
  const wanted = { q: query.get("q") ?? "", route: query.get("route") ?? "", state: query.get("state") ?? "" };
  const sought = meaning(wanted.q);
  const said = SAYS[sought.whole ? "transaction" : sought.begins && !wanted.state ? "begins" : wanted.state] ?? SAYS.live;
  /** How many rows are wanted; all of them are brought up to date. */
  let most = PAGE;
  const go = (change) => {
    const next = Object.entries({ ...wanted, ...change }).filter(([, value]) => value);
    location.hash = `#/requests${next.length ? `?${new URLSearchParams(next)}` : ""}`;
  };

  async function load() {
    const { routes } = await get(at(["routes"]));
    if (sought.whole) return { routes, ...(await byHash(sought.whole)) };
    if (wanted.state === "ended") return { routes, requests: [], ...(await ended()) };
    // Whoever has the beginning of an id may not know that the request has ended.
    const both = sought.begins !== undefined && !wanted.state;
    const [found, gone] = await Promise.all([live(), both ? ended() : { ended: [] }]);
    return { routes, ...found, ended: gone.ended };
  }

  async function ended() {
    const { begins } = sought;
    const limit = wanted.q ? CALL_MAX : Math.min(CALL_MAX, most);
    const { requests, next } = await get(at(["ended"], { route: wanted.route, id_prefix: begins, limit }));
    const fitting = wanted.q ? requests.filter(({ id }) => hasEnds(sought, id)) : requests;
    return { ended: fitting, more: !wanted.q && next !== undefined && limit < CALL_MAX };
  }

  async function live() {
    const found = new Map();
    for (const { query, fits } of asks(sought)) {
      let after;
      do {
        const limit = Math.min(CALL_MAX, Math.max(PAGE, most - found.size));
        const told = await get(at(["requests"], { route: wanted.route, state: wanted.state, ...query, after, limit }));
        for (const request of told.requests.filter(fits)) found.set(request.id, request);
        after = told.next ?? undefined;
      } while (after !== undefined && found.size < most);
      if (after !== undefined) return { requests: [...found.values()], more: true };
    }
    return { requests: [...found.values()], more: false };
  }

  const loadMore = ({ target }) => {
    target.disabled = true;
    most += PAGE;
    refresh();
  };

  const shown = (rows, table, more) => [
    table,
    rows.length > 0 &&
      h(
        "p",
        { class: "more" },
        h("span", { class: "quiet" }, `${count(rows.length)} shown`),
        more && h("button", { type: "button", onclick: loadMore }, "Show more"),
      ),
  ];

  return {
    title: "Requests",
    load,
    view: (data) => {
      return [
        head("Requests", said),
        filters(wanted, data.routes, go),
        data.unknown
          ? unknown(data.unknown)
          : data.transaction
            ? transaction(data.transaction)
            : wanted.state === "ended"
              ? shown(data.ended, endedTable(data.ended, wanted.q), data.more)
              : [
                  data.requests.length
                    ? shown(data.requests, requestsTable(data.requests, data.routes), data.more)
                    : data.ended.length === 0 && nothing(wanted),
                  gone(data),
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
      ? shortened(capital(silent))
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
      found.carries === false ? "It uses up the slot of" : "It answers",
      h("span", { class: "quiet" }, plural(found.requests.length, "request")),
      found.requests.length
        ? table(
            [{ name: "Request" }],
            found.requests.map((id) => ({ key: id, cells: [requestCell(id)] })),
            found.carries === false ? "Requests whose slot it uses up" : "Requests that it answers",
          )
        : h("p", { class: "quiet" }, "Nothing: it only uses a slot up."),
    ),
];

function filters(wanted, routes, go) {
  const search = (event) => {
    event.preventDefault();
    go({ q: typed(event.target) });
  };
  const typed = (form) => new FormData(form).get("q").trim();
  const option = (value, name, chosen) => h("option", { value, selected: value === chosen }, name);
  const select = (name, label, chosen, options) =>
    h(
      "label",
      { class: "pick" },
      h("span", { class: "unseen" }, label),
      h("select", { value: chosen, onchange: (event) => go({ q: typed(event.target.form), [name]: event.target.value }) }, options),
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
        placeholder: "Id, transaction, or words of an error",
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

/** What was found among those that ended, beside live ones. */
const gone = ({ requests, ended }) =>
  ended.length > 0 &&
  section(
    requests.length ? "Ended lately" : "Found among those that ended",
    h("span", { class: "quiet" }, requests.length ? plural(ended.length, "request") : "no live request fits"),
    endedTable(ended),
  );

const endedTable = (ended, q) =>
  ended.length === 0
    ? q
      ? empty("Nothing that ended lately fits.", "It is found by the beginning of its id: its errors are gone. What ended before is found by its whole id.")
      : empty("Nothing has ended since this process began to listen.", "What ended before is found by its id.")
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
      "What ended lately is found by the beginning of its id, what ended before by its whole id.",
      h("a", { class: "button", href: "#/requests" }, "Show all"),
    );
  return empty(
    "No request is live.",
    "Requests come from chains, timers and calls. Submit one:",
    command(`curl -X POST ${location.origin}/v1/routes/ROUTE/requests${token() ? ' -H "authorization: Bearer $TOKEN"' : ""} -d '{"n": 7}'`),
  );
}
