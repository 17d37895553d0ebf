// One request: where it is, all that happened to it, what was asked and answered, and what can be done.

import { h } from "../dom.js";
import { Problem, at, bytes, get, post } from "../api.js";
import { act, badge, confirm, copyable, empty, facts, head, json, laneLink, routeLink, section, trouble } from "../parts.js";
import { ago, brief, count, date, dump, plural, span, time } from "../words.js";
import { attemptView } from "./lanes.js";

export function page({ rest: [id], refresh }) {
  /** Bytes that somebody asked to see, by which they are. */
  const raw = {};
  return {
    title: `Request ${brief(id)}`,
    wants: (_, data) => data.includes(id),
    load: async () => {
      const [request, timeline] = await Promise.all([orNone(get(at(["requests", id]))), get(at(["requests", id, "timeline"]))]);
      const lane = request?.lane && (await orNone(get(at(["lanes", request.lane]))));
      const parcel = lane?.parcels?.find((found) => found.nonce === request.nonce);
      return { request, entries: timeline.entries, parcel };
    },
    view: ({ request, entries, parcel }) => {
      if (!request && entries.length === 0)
        return [
          head("Request", copyable(id, brief(id, 10))),
          empty(
            "No such request is here.",
            "It never came, or it ended so long ago that it is forgotten.",
            h("a", { class: "button", href: "#/requests" }, "All requests"),
          ),
        ];
      const live = request?.route !== undefined;
      const route = request?.route ?? entries.find((entry) => entry.route)?.route;
      const show = async (which) => {
        raw[which] = await bytes(at(["requests", id, which])).catch((error) => error);
        refresh();
      };
      return [
        head(
          h("span", { class: "mono" }, brief(id, 10)),
          [request && badge(request.state), route && [" on ", routeLink(route)]],
          request && actions(request, refresh),
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
                : "What last went wrong",
            ),
            h("p", {}, request.error.text),
            h("p", { class: "quiet" }, request.error.class),
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
          section("Facts", null, request && details(request, id)),
        ),
        live &&
          section(
            "What is asked",
            rawButton(raw.payload, () => show("payload")),
            body(request.encoding, request.payload, raw.payload),
          ),
        live &&
          request.response !== undefined &&
          section(
            "Its answer",
            rawButton(raw.response, () => show("response")),
            body(request.response_encoding, request.response, raw.response),
          ),
        !live && request && h("p", { class: "quiet" }, "It has ended: what was asked and answered is no longer kept."),
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

const orNone = (found) =>
  found.catch((error) => {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  });

function actions(request, refresh) {
  const mend = (remedy, said) => async () => {
    const work = async () => {
      const { state } = await post(at(["requests", request.id, remedy]));
      return `Done: it is ${state}`;
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
/** The trace id inside a trace context. */
const traceId = (trace) => /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(trace)?.[1] ?? trace;

const details = (request, id) =>
  facts([
    ["Id", copyable(id, brief(id, 8))],
    ["Came in", request.admitted_at_ms && h("span", { title: date(request.admitted_at_ms) }, ago(request.admitted_at_ms))],
    ["Ended", request.ended_at_ms && `${date(request.ended_at_ms)}`],
    ["Origin", request.standing && { seen: "seen, may still go", final: "final", orphaned: "taken away by a reorg" }[request.standing]],
    [
      "Seen at",
      request.occurrences
        ?.filter((found) => found.origin)
        .map((found) => h("div", { title: found.id }, `block ${count(found.height)} of ${found.origin}`)),
    ],
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
    ["Trace", request.trace && copyable(traceId(request.trace), brief(traceId(request.trace), 8))],
  ]);

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
  included: ["In a block", ""],
  confirmed: ["Confirmed", "good"],
  moved_back: ["Out of its block again", "warn"],
  returned: ["To be sent again", "warn"],
  delivered: ["Delivered", "good"],
  died: ["Dead letter", "bad"],
  replaced: ["A failure response takes its place", "warn"],
  rearmed: ["To be tried again", ""],
  ended: ["Ended", "good"],
};

function timeline(entries) {
  if (entries.length === 0) return h("p", { class: "quiet" }, "The journal no longer reaches back to it.");
  return h(
    "ol",
    { class: "timeline" },
    entries.map((entry, n) => {
      const [word, kind] = SAYS[entry.event] ?? [entry.event, ""];
      const gap = n > 0 ? entry.at_ms - entries[n - 1].at_ms : 0;
      return h(
        "li",
        { class: kind, "data-key": entry.position, "data-event": entry.event },
        h("span", { class: "what" }, entry.event === "ended" ? entry.detail[0].toUpperCase() + entry.detail.slice(1) : word),
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
  if (entry.lane)
    return [
      laneLink(entry.lane),
      entry.nonce !== undefined && [", slot ", h("a", { href: `#/lanes/${encodeURIComponent(entry.lane)}/${entry.nonce}` }, entry.nonce)],
    ];
  if (entry.transaction) return h("span", { class: "mono", title: entry.transaction }, brief(entry.transaction, 8));
  if (entry.event === "admitted") return entry.route;
  if (entry.event === "ended") return "";
  if (entry.event === "leased") return `by ${entry.detail}`;
  if (entry.event === "failed") return entry.detail?.replace(/; due again at \d+$/, "");
  return entry.detail ?? "";
}

const rawButton = (shown, show) => !shown && h("button", { type: "button", class: "small", onclick: show }, "Raw bytes");

/** A body as it is read, and byte by byte beside it. */
function body(encoding, value, shown) {
  const readable =
    encoding === "json"
      ? json(value)
      : h("p", { class: "note" }, `${plural(atob(value).length, "byte")} of ${encoding}: only its route knows how to read them.`);
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
