// Pages that cannot be shown: what happened, why that may be, and what to do next.

import { h } from "./dom.js";
import { Problem, whoami } from "./api.js";
import { command, copyable, icon } from "./parts.js";
import { brief } from "./words.js";

/** The shape of all of them. */
export const fault = ({ picture = "dead", heading = "h1", title, said, reasons = [], next = [] }) =>
  h(
    "div",
    { class: "fault", role: "alert" },
    h("span", { class: "fault-picture" }, icon(picture)),
    h(heading, {}, title),
    h("div", { class: "fault-said" }, said),
    reasons.length > 0 &&
      h(
        "ul",
        { class: "reasons" },
        reasons.map((reason) => h("li", {}, reason)),
      ),
    next.length > 0 && h("div", { class: "actions" }, next),
  );

const link = (href, text, kind = "") => h("a", { class: `button ${kind}`, href }, text);
const again = (retry) => retry && h("button", { type: "button", class: "primary", onclick: retry }, "Try again");

export const noPage = (path) =>
  fault({
    picture: "lost",
    title: "There is no page here",
    said: ["Nothing is called ", h("code", {}, path), ". The link may be cut short, or of another version."],
    next: [link("/#/", "Overview", "primary"), link("/#/requests", "Requests")],
  });

/** No request has this id; it may be of a transaction, which the search tells. */
export function noRequest(id) {
  const whole = /^(0x)?[0-9a-f]{64}$/i.test(id);
  return fault({
    picture: "lost",
    title: whole ? "No such request is here" : "This is no id of a request",
    said: whole
      ? ["Nothing is known of ", copyable(id, brief(id, 10))]
      : "An id has 64 hexadecimal digits; a part of it can be searched for.",
    reasons: whole
      ? [
          "It never came: its chain is not read up to there yet, or it was submitted somewhere else.",
          "It ended so long ago that it is forgotten; its route says for how long (keep_settled, keep_failed).",
          "It is the hash of a transaction, not the id of a request.",
        ]
      : [],
    next: [
      link(`#/requests?q=${encodeURIComponent(id)}`, whole ? "Look for a transaction" : "Search for it", "primary"),
      link("#/listeners", "How far listeners are"),
      link("#/requests", "All requests"),
    ],
  });
}

/** Something by its name that is not here, such as a lane. */
export const noSuch = (kind, name, all) =>
  fault({
    picture: "lost",
    title: `No ${kind} is called “${name}”`,
    said: `The name may be misspelled, or the ${kind} was taken out of the configuration.`,
    next: [link(all, `All ${kind}s`, "primary"), link("#/", "Overview")],
  });

/** The server cannot be reached; whoever shows this tries again by itself. */
export const away = (retry) =>
  fault({
    picture: "away",
    title: "The server does not answer",
    said: "This page tries again every few seconds and goes on by itself as soon as it is back. Nothing is lost: requests are on disk.",
    reasons: ["The program is restarting, or was stopped.", "The way to it is cut: a VPN, a proxy, a port that is forwarded no longer."],
    next: [again(retry)],
  });

/** A token that may do something, and not look. */
export const mayNotLook = (me, leave) =>
  fault({
    picture: "key",
    title: "You may not look",
    said: `${me.name} is logged in with the role ${me.roles.join(", ") || "none"}, which has no pages.`,
    reasons: ["The dashboard needs the role viewer, or operator to change anything. Whoever runs the program makes a link:"],
    next: [command("roundtrip token create --role viewer --link"), leave],
  });

/** Whatever else a call came to. */
export function failed(error, retry) {
  if (error.status === 0) return away(retry);
  if (error.status === 403)
    return fault({
      picture: "key",
      title: "Your role does not let you",
      said: error.message,
      reasons: [
        `You are ${whoami().name}, with the role ${whoami().roles.join(", ") || "none"}. Ask whoever runs the program for another link.`,
      ],
      next: [link("#/", "Overview", "primary")],
    });
  if (error.status === 404)
    return fault({
      picture: "lost",
      title: "This is not here",
      said: error.message,
      next: [link("#/", "Overview", "primary"), again(retry)],
    });
  if (error.status === 422)
    return fault({
      picture: "lost",
      title: "This cannot be looked for",
      said: error.message,
      reasons: ["The link may be cut short, misspelled, or of another version."],
      next: [link(location.hash.split("?")[0], "Look for everything", "primary"), link("#/", "Overview")],
    });
  if (error.status === 429)
    return fault({
      title: "Too many calls",
      said: "The server bounds how often one caller may ask. Close other tabs of this dashboard, and wait a moment.",
      next: [again(retry)],
    });
  if (error.status === 503)
    return fault({
      picture: "away",
      title: "The store does not answer",
      said: error.message,
      reasons: ["The server runs, but what it keeps requests in is away or busy. Nothing was done; nothing is lost."],
      next: [again(retry)],
    });
  return fault({
    title: error instanceof Problem ? error.title : "Something went wrong on this page",
    said: error.message,
    reasons: ["If it stays, the server's log says more; tell whoever runs it what you did."],
    next: [again(retry), link("#/", "Overview")],
  });
}
