// What several pages show alike.

import { h } from "./dom.js";
import { Problem, operates } from "./api.js";
import { STATES, brief, count, indented, stateOn } from "./words.js";

/** A state as a word; on a route that is given, in the words for it. */
export const badge = (given, route) => {
  const state = stateOn(route, given);
  const [word, meaning] = STATES[state] ?? [state, ""];
  return h("span", { class: `badge ${state}`, title: meaning }, word);
};

export const status = (word, kind) => h("span", { class: `status ${kind}` }, word);

export const requestLink = (id) => h("a", { class: "mono", href: `#/requests/${id}`, title: id }, brief(id));
/** The same, to be copied too: for tables, whose rows show it when they are looked at. */
export const requestCell = (id) => h("span", { class: "copyable quietly" }, requestLink(id), copyButton(id));
export const routeLink = (name) => h("a", { href: `#/routes/${encodeURIComponent(name)}` }, name);
export const slotLink = (lane, nonce) => h("a", { href: `#/lanes/${encodeURIComponent(lane)}/${nonce}` }, nonce);
export const laneLink = (name) => h("a", { href: `#/lanes/${encodeURIComponent(name)}` }, name);

/** What a page is under. */
export const trail = (href, name) => h("nav", { class: "trail", "aria-label": "Above" }, h("a", { href }, icon("back"), name));

/** The head of a page: what it is, what is said of it, and what can be done. */
export const head = (title, said, ...actions) =>
  h(
    "header",
    { class: "head" },
    h("div", {}, h("h1", {}, title), said && h("p", { class: "quiet" }, said)),
    h("div", { class: "actions" }, actions),
  );

export const section = (title, said, ...content) =>
  h("section", {}, h("div", { class: "section-head" }, h("h2", {}, title), said), content);

/** Nothing to show, and what to do next. */
export const empty = (title, ...next) =>
  h(
    "div",
    { class: "empty" },
    h("p", { class: "strong" }, title),
    next.map((part) => (typeof part === "string" ? h("p", { class: "quiet" }, part) : part)),
  );

export const command = (text) => h("pre", { class: "command", tabindex: "0" }, text);

/** What went wrong, and what can be done. */
export function trouble(error, again) {
  const title = error instanceof Problem ? error.title : "Something went wrong";
  return h(
    "div",
    { class: "trouble", role: "alert" },
    h("p", { class: "strong" }, title),
    h("p", {}, error.message),
    again && h("button", { type: "button", onclick: again }, "Try again"),
  );
}

/** A table whose cells name their columns, so that it can be a list on a phone. */
export function table(columns, rows, label) {
  return h(
    "div",
    { class: "table-box", tabindex: "0", role: "group", "aria-label": label },
    h(
      "table",
      { "aria-label": label },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((column) => h("th", { scope: "col", class: column.number && "number" }, column.name)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            { "data-key": row.key, class: row.class },
            row.cells.map((cell, n) => h("td", { class: columns[n].number && "number", "data-label": columns[n].name }, cell)),
          ),
        ),
      ),
    ),
  );
}

export const facts = (pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs
      .filter((pair) => pair && ![undefined, null, false, ""].includes(pair[1]) && pair[1].length !== 0)
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );

/** Puts a text onto the clipboard; whether that was let. A browser has the newer way only where nobody can listen in. */
async function toClipboard(text, beside) {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  const field = h("textarea", { class: "unseen", value: text, "aria-hidden": "true" });
  beside.after(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  beside.focus();
  return done;
}

export function copyButton(text) {
  const copy = async (event) => {
    const button = event.currentTarget;
    button.dataset.copied = (await toClipboard(text, button)) ? "copied" : "not copied";
    setTimeout(() => delete button.dataset.copied, 1200);
  };
  const label = `Copy ${brief(text)}`;
  return h("button", { type: "button", class: "copy", "aria-label": label, title: "Copy", onclick: copy }, icon("copy"));
}

/** A long text in short, to be copied whole. */
export const copyable = (text, shown = text) =>
  h("span", { class: "copyable" }, h("span", { class: "mono", title: text }, shown), copyButton(text));

/** A text whose addresses and hashes are cut short, each to be copied whole. */
export const shortened = (text) =>
  text.split(/(0x[0-9a-fA-F]{40,64})\b/).map((part) => (/^0x[0-9a-fA-F]{40}/.test(part) ? copyable(part, brief(part)) : part));

const ICONS = {
  copy: "M9 9h9v11H9zM6 15V4h9",
  overview: "M3 13h4l3-8 4 14 3-6h4",
  requests: "M4 6h16M4 12h16M4 18h10",
  dead: "M12 4l9 16H3zM12 10v4M12 17v.5",
  routes: "M5 5v6a4 4 0 004 4h10M15 11l4 4-4 4",
  listeners: "M5 12a7 7 0 0114 0M8.5 12a3.5 3.5 0 017 0M12 12v8",
  lanes: "M4 7h16M4 12h16M4 17h16M8 5v4M14 10v4M10 15v4",
  inbox: "M4 13l3-8h10l3 8v6H4zM4 13h5l1.5 3h3L15 13h5",
  work: "M12 8.5a3.5 3.5 0 100 7 3.5 3.5 0 000-7zM12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.6l2 2M16.4 16.4l2 2M5.6 18.4l2-2M16.4 7.6l2-2",
  outbox: "M4 13l3-8h3M20 13l-3-8h-3M4 13v6h16v-6h-5l-1.5 3h-3L9 13zM12 12V4M9.5 6L12 3.5 14.5 6",
  settled: "M12 4a8 8 0 100 16 8 8 0 000-16zM8.5 12l2.5 2.5 4.5-5",
  queues: "M4 5h16v4H4zM4 11h16v4H4zM4 17h16v3H4z",
  search: "M11 4a7 7 0 100 14 7 7 0 000-14zM16 16l5 5",
  theme: "M12 4a8 8 0 100 16zM12 4a8 8 0 010 16",
  out: "M14 4h5v16h-5M4 12h10M10 8l4 4-4 4",
  back: "M14 6l-6 6 6 6",
  menu: "M5 12h.01M12 12h.01M19 12h.01",
  lost: "M11 4a7 7 0 100 14 7 7 0 000-14zM16 16l5 5M8.5 11h5",
  away: "M3 3l18 18M5 12.5a10 10 0 013-2M9 16a5 5 0 015.5-.6M13.5 8.6a10 10 0 015.5 3.9M12 19.5v.01",
  key: "M14 10a4 4 0 10-2.5 3.7L14 16h2v2h2v2h3v-3l-7.2-7.2z",
};
export const icon = (name) =>
  h("svg", { class: "icon", "data-name": name, viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d: ICONS[name] }));

/** A button that only those have who may use it. */
export const act = (label, onclick, kind = "") => operates() && h("button", { type: "button", class: kind, onclick }, label);

/** Asks before something is done; does it, and says what came of it. Whether it was done. */
export function confirm({ title, text, action, refuse = "Not now", kind = "primary", content, work }) {
  return new Promise((done) => {
    const said = h("div", { role: "status", class: "said" });
    const go = h("button", { type: "submit", class: kind }, action);
    const cancel = h("button", { type: "button", onclick: () => box.close() }, refuse);
    let did = false;
    const submit = async (event) => {
      event.preventDefault();
      go.disabled = true;
      said.replaceChildren();
      try {
        const told = await work((progress) => said.replaceChildren(progress), new FormData(event.target));
        did = true;
        box.close();
        toast(told ?? "Done");
      } catch (error) {
        go.disabled = false;
        said.replaceChildren(trouble(error));
      }
    };
    const box = h(
      "dialog",
      { "aria-label": title },
      h(
        "form",
        { method: "dialog", onsubmit: submit },
        h("h2", {}, title),
        text && h("p", {}, text),
        content,
        said,
        h("div", { class: "dialog-actions" }, cancel, go),
      ),
    );
    box.addEventListener("close", () => {
      box.remove();
      done(did);
    });
    document.body.append(box);
    box.showModal();
    (kind === "danger" ? cancel : go).focus();
  });
}

let toasts;
export function toast(text) {
  if (!toasts?.isConnected) document.body.append((toasts = h("div", { class: "toasts", role: "status" })));
  const one = h("div", { class: "toast" }, text);
  toasts.append(one);
  setTimeout(() => one.remove(), 5000);
}

/** A short bar of parts, each as wide as its share. */
export function shares(parts, label) {
  const all = parts.reduce((sum, part) => sum + part.count, 0);
  const shown = parts.filter((part) => part.count > 0);
  const said = shown.map((part) => `${count(part.count)} ${part.name}`).join(", ");
  return h(
    "div",
    { class: "shares", role: "img", "aria-label": `${label}: ${said || "none"}` },
    all === 0
      ? h("span", { class: "none" })
      : shown.map((part) => {
          const bar = h("span", { class: part.kind, title: `${part.name}: ${count(part.count)}` });
          bar.style.flexGrow = part.count;
          return bar;
        }),
  );
}

/** JSON text as people read it. */
export const json = (text) => h("pre", { class: "json", tabindex: "0" }, colored(indented(text)));

function colored(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(/("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g)) {
    parts.push(text.slice(at, found.index));
    const kind = found[2] ? "key" : found[1] ? "text" : "value";
    parts.push(h("span", { class: kind }, found[1] ?? found[0]));
    if (found[2]) parts.push(found[2]);
    at = found.index + found[0].length;
  }
  parts.push(text.slice(at));
  return parts;
}
