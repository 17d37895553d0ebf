// Dead letters of both sides, by what they died of; many mended at once, after a look at what is touched.

import { h } from "../dom.js";
import { at, get, operates, post } from "../api.js";
import { act, confirm, empty, head, requestLink, routeLink, status } from "../parts.js";
import { CLASSES, ago, count, plural } from "../words.js";

/** Examples that a preview shows. */
const NAMED = 5;
/** How many are looked through for them. */
const LOOKED_AT = 200;
/** Mended in one call; more are done in several. */
const STEP = 500;

export function page({ query, refresh }) {
  const route = query.get("route") ?? "";
  return {
    title: "Dead letters",
    wants: (event) => ["died", "rearmed", "reworked", "ended"].includes(event),
    load: async () => {
      const [preview, routes] = await Promise.all([get(at(["dead"], { route })), get(at(["routes"]))]);
      return { preview, routes: routes.routes.map((one) => one.name) };
    },
    view: ({ preview, routes }) => {
      const side = (answered) => preview.causes.filter((cause) => Boolean(cause.answered) === answered);
      const all = route ? { route } : {};
      return [
        head(
          "Dead letters",
          preview.total
            ? `${plural(preview.total, "request")} ${preview.total === 1 ? "waits" : "wait"} for a person${preview.more ? ", and more" : ""}.`
            : null,
          routes.length > 1 && pick(routes, route),
          preview.total > 0 && [
            act("Drop all", () => mend("drop", all, refresh)),
            act("Retry all", () => mend("retry", all, refresh), "primary"),
          ],
        ),
        preview.total === 0
          ? empty(
              route ? `${route} has no dead letters.` : "No dead letters.",
              "A request comes here when its attempts are used up, or when its answer can never be delivered. Nothing is to be done.",
              route && h("a", { class: "button", href: "#/dead" }, "All routes"),
            )
          : [
              group(
                "Could not be answered",
                "Their workers failed, or went silent too often. A retry works on them from the first attempt.",
                side(false),
                null,
                refresh,
              ),
              group(
                "Could not be delivered",
                "They have an answer. A retry sends it again; one that is wrong is worked out anew.",
                side(true),
                side(true).length > 1 && act("Work all out anew", () => mend("rework", { ...all, answered: true }, refresh)),
                refresh,
              ),
            ],
        preview.others > 0 && h("p", { class: "quiet" }, `${count(preview.others)} have other causes, too rare to be listed.`),
      ];
    },
  };
}

function pick(routes, chosen) {
  const go = (event) => {
    location.hash = `#/dead${event.target.value ? `?route=${encodeURIComponent(event.target.value)}` : ""}`;
  };
  return h(
    "label",
    { class: "pick" },
    h("span", { class: "unseen" }, "Route"),
    h(
      "select",
      { value: chosen, onchange: go },
      h("option", { value: "" }, "All routes"),
      routes.map((route) => h("option", { value: route, selected: route === chosen }, route)),
    ),
  );
}

const group = (title, said, causes, action, refresh) =>
  causes.length > 0 &&
  h(
    "section",
    {},
    h("div", { class: "section-head" }, h("h2", {}, title), action),
    h("p", { class: "quiet" }, said),
    h(
      "ul",
      { class: "causes" },
      causes.map((cause) => {
        const filter = { route: cause.route, cause: cause.cause, answered: Boolean(cause.answered) };
        return h(
          "li",
          { class: "card", "data-key": `${cause.route} ${cause.answered} ${cause.class} ${cause.cause}` },
          h(
            "div",
            { class: "cause" },
            h("span", { class: "figure" }, count(cause.requests)),
            h(
              "div",
              {},
              h("p", { class: "strong" }, cause.cause || "no reason was given"),
              cause.text !== cause.cause && h("p", { class: "error-text" }, cause.text),
              h(
                "p",
                { class: "quiet" },
                status(CLASSES[cause.class] ?? cause.class, "calm"),
                " on ",
                routeLink(cause.route),
                `, the newest came in ${ago(cause.newest_at_ms)}; such as `,
                requestLink(cause.example),
              ),
            ),
          ),
          operates() &&
            h(
              "div",
              { class: "actions" },
              act("Drop", () => mend("drop", filter, refresh)),
              cause.answered && act("Work out anew", () => mend("rework", filter, refresh)),
              act("Retry", () => mend("retry", filter, refresh)),
            ),
        );
      }),
    ),
  );

/** The longest part of a cause that is said word for word: its numbers are left out. Pure. */
const literal = (cause = "") =>
  cause
    .split("…")
    .map((part) => part.trim())
    .reduce((longest, part) => (part.length > longest.length ? part : longest), "");

/** Whether a dead letter is of a side and a cause, as far as they are given. Pure. */
function isOf({ cause, answered }, letter) {
  if (answered !== undefined && Boolean(letter.answered) !== answered) return false;
  if (cause === undefined) return true;
  const text = letter.error?.text ?? "";
  const parts = cause.split("…").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return cause === "" ? text === "" : new RegExp(`^${parts.join("[0-9a-zA-Z]+")}`).test(text);
}

/** How a remedy for so many is asked for, and told of. Pure. */
const REMEDIES = {
  retry: (total) => ({
    title: `Retry ${plural(total, "dead letter")}?`,
    text: "These are tried again; what dies meanwhile is not touched.",
    action: `Retry ${count(total)}`,
    told: "to be tried again",
  }),
  rework: (total) => ({
    title: `Work out ${plural(total, "answer")} anew?`,
    text: "Their answers are thrown away, and workers have them again from the first attempt; what dies meanwhile is not touched.",
    kind: "danger",
    action: `Throw ${plural(total, "answer")} away`,
    told: "to be worked out anew",
  }),
  drop: (total) => ({
    title: `Drop ${plural(total, "dead letter")}?`,
    text: "They end for good. What was asked and answered is forgotten; their ids are remembered.",
    kind: "danger",
    action: `Drop ${count(total)}`,
    told: "dropped",
  }),
};

/** Shows what will be touched, and does it a page at a time. */
async function mend(remedy, filter, refresh) {
  const preview = await get(at(["dead"], filter));
  const said = literal(filter.cause);
  const { requests } = await get(at(["requests"], { route: filter.route, state: "dead", error: said, limit: LOOKED_AT }));
  const named = requests.filter((letter) => isOf(filter, letter)).slice(0, NAMED);
  const rest = preview.total - named.length;
  const list = new URLSearchParams({ state: "dead", ...(filter.route && { route: filter.route }), ...(said && { q: `"${said}"` }) });
  const { told, ...words } = REMEDIES[remedy](preview.total);
  const touched = h(
    "div",
    { class: "preview", tabindex: "0", role: "group", "aria-label": "What is touched" },
    h(
      "ul",
      { class: "plain" },
      preview.causes
        .slice(0, 5)
        .map((cause) =>
          h(
            "li",
            {},
            h("strong", {}, count(cause.requests)),
            ` on ${cause.route}: `,
            h("span", { class: "quiet" }, cause.cause || "no reason was given"),
          ),
        ),
    ),
    h(
      "ul",
      { class: "plain examples", "aria-label": "Examples" },
      named.map(({ id, error }) => h("li", {}, requestLink(id), " ", h("span", { class: "quiet" }, error?.text))),
    ),
  );
  // Beside what scrolls, so that it is seen that there are more.
  const more = h(
    "p",
    { class: "quiet" },
    rest > 0 && `and ${count(rest)} more. `,
    h("a", { href: `#/requests?${list}` }, said ? `All dead letters that say “${said}”` : "The list of them"),
  );
  const content = h("div", {}, touched, more);
  const work = async (say) => {
    let after,
      done = 0,
      passed = 0;
    do {
      const page = await post(at(["dead", remedy]), { filter: { ...filter, up_to: preview.up_to }, all: true, after, limit: STEP });
      done += page.done;
      passed += page.passed_over;
      after = page.next;
      say(h("progress", { value: done + passed, max: preview.total, "aria-label": "How far it is" }));
    } while (after !== undefined && after !== null);
    return `${plural(done, "dead letter")} ${told}${passed ? `; ${count(passed)} were passed over: none any longer, or their lane is stopped` : ""}`;
  };
  if (await confirm({ ...words, content, work })) refresh();
}
