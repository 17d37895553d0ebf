// Dead letters of both sides, by what they died of; many mended at once, after a look at what is touched.

import { h } from "../dom.js";
import { at, get, operates, post } from "../api.js";
import { act, confirm, empty, head, requestLink, routeLink, status } from "../parts.js";
import { CLASSES, ago, count, plural } from "../words.js";

/** Ids that a preview names. */
const NAMED = 8;
/** Mended in one call; more are done in several. */
const STEP = 500;

export function page({ query, refresh }) {
  const route = query.get("route") ?? "";
  return {
    title: "Dead letters",
    wants: (event) => ["died", "rearmed", "ended"].includes(event),
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
                refresh,
              ),
              group(
                "Could not be delivered",
                "They have an answer. A retry sends it again; it is not worked out anew.",
                side(true),
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

const group = (title, said, causes, refresh) =>
  causes.length > 0 &&
  h(
    "section",
    {},
    h("div", { class: "section-head" }, h("h2", {}, title)),
    h("p", { class: "quiet" }, said),
    h(
      "ul",
      { class: "causes" },
      causes.map((cause) => {
        const filter = { route: cause.route, cause: cause.cause, answered: Boolean(cause.answered) };
        return h(
          "li",
          { class: "card", "data-key": `${cause.route} ${cause.answered} ${cause.cause}` },
          h(
            "div",
            { class: "cause" },
            h("span", { class: "figure" }, count(cause.requests)),
            h(
              "div",
              {},
              h("p", { class: "strong" }, cause.cause || "no reason was given"),
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
              act("Retry", () => mend("retry", filter, refresh)),
            ),
        );
      }),
    ),
  );

/** Shows what will be touched, and does it a page at a time. */
async function mend(remedy, filter, refresh) {
  const preview = await get(at(["dead"], filter));
  const fits = { route: filter.route, state: "dead", limit: NAMED };
  // Of one cause, only its example is known to be of it; of a route, the first ones are.
  const named =
    filter.cause === undefined
      ? (await get(at(["requests"], fits))).requests.map((request) => request.id)
      : preview.causes.map((cause) => cause.example);
  const rest = preview.total - named.length;
  const drop = remedy === "drop";
  const content = h(
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
      "p",
      { class: "quiet" },
      named.map((id) => [requestLink(id), " "]),
      rest > 0 && `and ${count(rest)} more`,
    ),
  );
  const work = async (say) => {
    let after,
      done = 0,
      passed = 0;
    do {
      const told = await post(at(["dead", remedy]), { filter: { ...filter, up_to: preview.up_to }, all: true, after, limit: STEP });
      done += told.done;
      passed += told.passed_over;
      after = told.next;
      say(h("progress", { value: done + passed, max: preview.total, "aria-label": "How far it is" }));
    } while (after !== undefined && after !== null);
    return `${plural(done, "dead letter")} ${drop ? "dropped" : "to be tried again"}${passed ? `; ${count(passed)} were none any longer` : ""}`;
  };
  const many = plural(preview.total, "dead letter");
  const said = drop
    ? {
        title: `Drop ${many}?`,
        text: "They end for good. What was asked and answered is forgotten; their ids are remembered.",
        kind: "danger",
        action: `Drop ${count(preview.total)}`,
      }
    : {
        title: `Retry ${many}?`,
        text: "These are tried again; what dies meanwhile is not touched.",
        action: `Retry ${count(preview.total)}`,
      };
  if (await confirm({ ...said, content, work })) refresh();
}
