// One request: where it is, all that happened to it, what was asked and answered, and what can be done.

import { h } from "../dom.js";
import { Problem, at, bytes, get, getRequest, post } from "../api.js";
import { noRequest } from "../faults.js";
import { act, badge, confirm, copyButton, copyable, facts, head, json, laneLink, routeLink, section, slotLink } from "../parts.js";
import { trail, trouble } from "../parts.js";
import { ago, brief, capital, count, date, dump, gwei, now, plural, shownState, span, time } from "../words.js";
import { attemptView, called } from "./lanes.js";

/** What tells that a transaction is in a block. */
const MINED = ["included", "confirmed"];
/** An id that is one. */
const WHOLE = /^(0x)?[0-9a-f]{64}$/i;

export function page({ rest: [id], refresh }) {
  /** Bytes that somebody asked to see, by which they are. */
  const raw = {};
  /** The transaction that carried an answer which is no longer kept, once it was asked for. */
  const carriers = new Map();
  const carrier = async (hash) => {
    if (hash && !carriers.has(hash)) carriers.set(hash, await get(at(["transactions", hash])).catch(() => null));
    return carriers.get(hash);
  };
  /** The transactions that asked for it, once its chain was asked for them. */
  let askers = null;
  const look = async (request) => {
    if (askers || !request?.occurrences?.some((shown) => shown.origin)) return;
    askers = { transactions: [], silent: [] };
    askers = await get(at(["requests", id, "asked_by"])).catch(() => null);
    refresh();
  };
  return {
    title: `Request ${brief(id)}`,
    wants: (_, data) => data.includes(id),
    load: async () => {
      if (!WHOLE.test(id)) return { request: null, entries: [] };
      const [request, timeline] = await Promise.all([orNone(getRequest(id)), get(at(["requests", id, "timeline"]))]);
      const routes = request?.route ? (await get(at(["routes"]))).routes : [];
      const ended = request && request.route === undefined;
      const mined = ended && timeline.entries.findLast((entry) => MINED.includes(entry.event))?.transaction;
      const lane = request?.lane && (await orNone(get(at(["lanes", request.lane]))));
      const parcel = lane?.parcels?.find((found) => found.nonce === request.nonce);
      const home = routes.find((found) => found.name === request.route);
      look(request);
      return { request, entries: timeline.entries, parcel, home, carrier: mined ? await carrier(mined) : null };
    },
    view: ({ request, entries, parcel, home, carrier }) => {
      if (!request && entries.length === 0) return noRequest(id);
      const live = request?.route !== undefined;
      const route = request?.route ?? entries.find((entry) => entry.route)?.route;
      const show = async (which) => {
        raw[which] = await bytes(at(["requests", id, which])).catch((error) => error);
        refresh();
      };
      return [
        trail("#/requests", "Requests"),
        head(
          h("span", { class: "mono" }, brief(id, 10)),
          [request && badge(shownState(request), home), route && [" on ", routeLink(route)]],
          live && actions(request, refresh),
        ),
        request?.error &&
          h(
            "div",
            { class: request.state === "dead" ? "trouble" : "note" },
            h(
              "p",
              { class: "strong" },
              request.state === "dead"
                ? request.answered
                  ? "Its answer could not be delivered"
                  : "It could not be answered"
                : request.delivery_failures
                  ? "Its answer is not taken where it is wanted"
                  : "What last went wrong",
            ),
            h("p", {}, request.error.text),
            h("p", { class: "quiet" }, next(request)),
          ),
        h(
          "div",
          { class: "split" },
          section(
            "Timeline",
            entries.length > 0 &&
              h("span", { class: "quiet" }, `${span(entries[entries.length - 1].at_ms - entries[0].at_ms)} from first to last`),
            timeline(entries),
          ),
          section("Facts", null, details(request ?? {}, id, entries, askers)),
        ),
        live &&
          section(
            "What is asked",
            rawButton(raw.payload, () => show("payload")),
            body(request.encoding, request.texts.payload, raw.payload),
          ),
        live &&
          request.response !== undefined &&
          section(
            "Its answer",
            rawButton(raw.response, () => show("response")),
            body(request.response_encoding, request.texts.response, raw.response),
          ),
        !live && gone(request, entries, carrier),
        parcel &&
          section(
            `On slot ${parcel.nonce}`,
            h("a", { href: `#/lanes/${encodeURIComponent(request.lane)}/${parcel.nonce}` }, `Lane ${request.lane}`),
            h(
              "ol",
              { class: "attempts" },
              parcel.attempts.map((attempt, n) => attemptView(attempt, n, parcel.mined?.hash === attempt.hash)),
            ),
          ),
      ];
    },
  };
}

/** Why nobody tries any longer. */
const GIVEN_UP = {
  transport: "There was no way to it, so that it waits for a person.",
  retryable: "It was tried as often as its route lets, and waits for a person.",
  fatal: "Another try was said to be useless, so that it waits for a person.",
  crash: "Workers were lost over it as often as its route lets, so that it waits for a person.",
};

/** What comes after what went wrong. */
function next(request) {
  if (request.state === "dead") return GIVEN_UP[request.error.class];
  return tried(request) ?? (["held", "queued"].includes(request.state) ? "It is tried again." : "It went on since then.");
}

/** How often its answer failed to be delivered, and when it is tried again; only who delivers it knows. */
function tried({ delivery_failures: times, delivery_failed_at_ms: failed_at_ms, delivery_due_at_ms: due_at_ms }) {
  if (!times) return null;
  const left_ms = due_at_ms && due_at_ms - now();
  const again = left_ms > 1000 ? ` in ${span(left_ms)}` : left_ms ? " now" : ", ever more rarely";
  return `Tried ${plural(times, "time")} in vain, last ${ago(failed_at_ms)}; it is tried again${again}.`;
}

/** What is left of a request that ended: its bodies are not. */
const gone = (request, entries, carrier) => [
  section(
    "What was asked and answered",
    null,
    h(
      "div",
      { class: "note" },
      h("p", { class: "strong" }, "Both are gone: a store keeps them only while a request is live."),
      h(
        "p",
        { class: "quiet" },
        request
          ? "What is left is its receipt, by which a repeat is recognised, and the timeline as far as the journal reaches back."
          : "Its receipt is gone too; what is left is the timeline, as far as the journal reaches back.",
        carrier?.transaction && " The answer is on its chain, and is read from there:",
        !carrier?.transaction && entries.some((entry) => MINED.includes(entry.event)) && " The answer is on its chain, by the hash in the timeline.",
      ),
    ),
  ),
  carrier &&
    section(
      "Its answer, as the chain has it",
      null,
      h(
        "div",
        { class: "card" },
        h(
          "header",
          {},
          h("h3", {}, "Transaction"),
          copyable(carrier.hash, brief(carrier.hash, 10)),
          carrier.requests.length > 1 && h("span", { class: "quiet" }, `with ${plural(carrier.requests.length - 1, "other answer")}`),
        ),
        carrier.transaction
          ? called(carrier.transaction)
          : h("p", { class: "quiet" }, "What it says cannot be read: its chain does not show it now, or it calls something else."),
      ),
    ),
];

const orNone = (found) =>
  found.catch((error) => {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  });

function actions(request, refresh) {
  const mend = (remedy, said) => async () => {
    const work = async () => {
      const { state } = await post(at(["requests", request.id, remedy]));
      return `Done: it is ${remedy === "drop" ? "dropped" : state}`;
    };
    if (await confirm({ ...said, work })) refresh();
  };
  if (request.state === "dead")
    return [
      act(
        "Drop",
        mend("drop", {
          title: "Drop this dead letter?",
          text: "It ends for good. What was asked and answered is forgotten; its id is remembered.",
          kind: "danger",
          action: "Drop it",
        }),
      ),
      request.answered &&
        act(
          "Work out anew",
          mend("rework", {
            title: "Work it out anew?",
            text: "Its answer is thrown away, and a worker has it again from the first attempt.",
            kind: "danger",
            action: "Throw the answer away",
          }),
        ),
      act(
        "Retry",
        mend("retry", {
          title: "Retry it?",
          text: request.answered ? "Its answer is sent again; it is not worked out anew." : "It is worked on from its first attempt.",
          action: "Retry",
        }),
        "primary",
      ),
    ];
  if (["held", "queued", "leased", "waiting", "ready"].includes(request.state))
    return act(
      "Cancel",
      mend("cancel", {
        title: "Cancel this request?",
        text: "Nothing was sent for it yet, and nothing will be. A worker that has it is told.",
        kind: "danger",
        action: "Cancel it",
      }),
    );
  return null;
}

const moment = (found) =>
  found &&
  (found.at_ms
    ? date(found.at_ms)
    : found.height
      ? `block ${count(found.height)} of ${found.origin}`
      : `${date(found.block_time_ms)} of ${found.origin}`);

/** A transaction by its hash; what it asks for is a step away. */
const transactionLink = (hash) => h("a", { class: "mono", href: `#/requests?q=${hash}`, title: hash }, brief(hash, 8));

const askedBy = ({ transactions, silent }) => [
  ...transactions.map(({ hash }) => h("div", { class: "copyable" }, transactionLink(hash), copyButton(hash))),
  ...(silent.length ? [h("span", { class: "quiet", title: silent.join("; ") }, "its chain does not say now")] : []),
];

const details = (request, id, entries, askers) => {
  const admitted_at_ms = request.admitted_at_ms ?? entries.find((entry) => entry.event === "admitted")?.at_ms;
  return facts([
    ["Id", copyable(id, brief(id, 8))],
    ["Came in", admitted_at_ms && h("span", { title: date(admitted_at_ms) }, ago(admitted_at_ms))],
    ["Ended", request.ended_at_ms && h("span", { title: date(request.ended_at_ms) }, ago(request.ended_at_ms))],
    ["Took", request.ended_at_ms && admitted_at_ms && span(request.ended_at_ms - admitted_at_ms)],
    ["Origin", request.standing && { seen: "seen, may still go", final: "final", orphaned: "taken away by a reorg" }[request.standing]],
    [
      "Seen at",
      request.occurrences
        ?.filter((found) => found.origin)
        .map((found) => h("div", { title: found.id }, `block ${count(found.height)} of ${found.origin}`)),
    ],
    ["Asked by", askers && askedBy(askers)],
    ["Worker", request.worker && `${request.worker}, until ${time(request.leased_until_ms)}`],
    ["Lane", request.lane && [laneLink(request.lane), `, slot ${request.nonce}`]],
    [
      "Attempts",
      request.attempts !== undefined && `${request.attempts}${request.crashes ? `, ${plural(request.crashes, "lost worker")}` : ""}`,
    ],
    ["Not before", moment(request.due)],
    ["Deadline", moment(request.deadline)],
    ["Generation", request.generation || undefined],
    ["Content", request.revision ? `revision ${request.revision}` : undefined],
    ["Waits", request.behind && "for the end of another request with its id"],
    ["Trace", request.trace_id && copyable(request.trace_id, brief(request.trace_id, 8))],
  ]);
};

const SAYS = {
  admitted: ["Seen", "good"],
  attached: ["Seen again", ""],
  finalized: ["Final", "good"],
  orphaned: ["Taken away by a reorg", "warn"],
  reincluded: ["Back in a block", ""],
  superseded: ["Its content changed", "warn"],
  leased: ["Leased", ""],
  released: ["Given back", ""],
  failed: ["Failed", "bad"],
  answered: ["Answered", "good"],
  assigned: ["On a slot", ""],
  attempted: ["Signed anew", ""],
  cancel_wished: ["To be cancelled", "warn"],
  included: ["In a block", ""],
  confirmed: ["Confirmed", "good"],
  moved_back: ["Out of its block again", "warn"],
  returned: ["To be sent again", "warn"],
  delivered: ["Delivered", "good"],
  undelivered: ["Not taken", "bad"],
  died: ["Dead letter", "bad"],
  replaced: ["A failure response takes its place", "warn"],
  rearmed: ["To be tried again", ""],
  reworked: ["To be worked out anew", "warn"],
  done_elsewhere: ["Done elsewhere", ""],
};

/** How an end is told: only what was done is good. */
function endedAs(end) {
  const word = end === "dead" ? "dropped" : end;
  return [capital(word), end === "settled" ? "good" : ""];
}

function timeline(entries) {
  if (entries.length === 0) return h("p", { class: "quiet" }, "The journal no longer reaches back to it.");
  return h(
    "ol",
    { class: "timeline" },
    entries.map((entry, n) => {
      const [word, kind] = entry.event === "ended" ? endedAs(entry.detail) : (SAYS[entry.event] ?? [entry.event, ""]);
      const gap = n > 0 ? entry.at_ms - entries[n - 1].at_ms : 0;
      return h(
        "li",
        { class: kind, "data-key": entry.position, "data-event": entry.event },
        h("span", { class: "what" }, word),
        h("span", { class: "how" }, how(entry)),
        h(
          "time",
          { datetime: new Date(entry.at_ms).toISOString(), title: date(entry.at_ms) },
          n === 0 ? time(entry.at_ms) : `+${span(gap)}`,
        ),
      );
    }),
  );
}

function how(entry) {
  if (entry.transaction) {
    return [
      entry.lane && [laneLink(entry.lane), ", slot ", slotLink(entry.lane, entry.nonce), ": "],
      entry.block !== undefined && [h("span", { class: "whole" }, `block ${count(entry.block)}`), ": "],
      copyable(entry.transaction, brief(entry.transaction, 8)),
      entry.fee_most && [" for at most ", h("span", { class: "whole" }, gwei(entry.fee_most))],
      entry.carries === false && ", which carries nothing",
    ];
  }
  if (entry.event === "admitted") return entry.route;
  if (entry.event === "ended") return "";
  if (entry.event === "leased") return `by ${entry.detail}`;
  if (entry.event === "failed") return entry.detail?.replace(/; due again at \S+$/, "");
  return entry.detail ?? "";
}

const rawButton = (shown, show) => !shown && h("button", { type: "button", class: "small", onclick: show }, "Raw bytes");

/** A body as it is read, and byte by byte beside it. */
function body(encoding, text, shown) {
  const readable =
    encoding === "json"
      ? json(text)
      : h("p", { class: "note" }, `${plural(atob(JSON.parse(text)).length, "byte")} of ${encoding}: only its route knows how to read them.`);
  if (!shown) return readable;
  if (shown instanceof Error) return [readable, trouble(shown)];
  return h(
    "div",
    { class: "beside" },
    readable,
    h(
      "div",
      {},
      h("p", { class: "quiet" }, plural(shown.length, "byte")),
      h("pre", { class: "raw dump", tabindex: "0", "aria-label": "Raw bytes" }, dump(shown)),
    ),
  );
}
