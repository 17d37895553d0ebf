// The frame: who is logged in, where they are, and when a page is brought up to date.

import { h, patch } from "./dom.js";
import { at, expiry, get, onUnknown, setMe, setToken, token, tokenFromLink, whoami } from "./api.js";
import { away, failed, mayNotLook, noPage } from "./faults.js";
import * as live from "./live.js";
import { icon, toast } from "./parts.js";
import { date, setServerTime, short, span, time } from "./words.js";

/** Pages come when they are first wanted. */
const PAGES = {
  "": () => import("./pages/overview.js"),
  requests: (rest) => (rest.length ? import("./pages/request.js") : import("./pages/requests.js")),
  dead: () => import("./pages/dead.js"),
  routes: () => import("./pages/routes.js"),
  listeners: () => import("./pages/listeners.js"),
  lanes: () => import("./pages/lanes.js"),
  queues: () => import("./pages/queues.js"),
};
const NAV = [
  ["", "Overview", "overview", "o"],
  ["requests", "Requests", "requests", "r"],
  ["dead", "Dead letters", "dead", "d"],
  ["routes", "Routes", "routes", "t"],
  ["listeners", "Listeners", "listeners", "i"],
  ["lanes", "Lanes", "lanes", "l"],
  ["queues", "Queues", "queues", "q"],
];
/** Those that a phone's bar has no room for; its last button shows them. */
const TUCKED = ["routes", "listeners", "queues"];
/** A page is read anew this long after the first of any number of updates, and this often without any. */
const SETTLE_MS = 900;
const IDLE_MS = 10_000;
/** How long a connection may be lost before a page says so. */
const PATIENCE_MS = 1500;
/** How often a server that is away is tried again at the start. */
const AGAIN_MS = 2000;

const app = document.getElementById("app");
const main = h("main", { id: "main", tabindex: "-1" });
const banner = h("div", { class: "away", hidden: true });
let page = null;
/** When a page was last brought up to date. */
let shownAt = Date.now();

// The theme: as the system has it, unless somebody chose.
const THEMES = ["auto", "light", "dark"];
const theme = () => localStorage.getItem("roundtrip-theme") ?? "auto";
const wear = () => {
  document.documentElement.dataset.theme = theme();
};
function nextTheme() {
  localStorage.setItem("roundtrip-theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  wear();
  frame();
  page?.refresh();
}

function where() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const asked = new URLSearchParams(query);
  try {
    const [name, ...rest] = path.split("/").map(decodeURIComponent);
    return { name, rest, query: asked };
  } catch {
    // Badly escaped, it is the name of no page.
    return { name: path, rest: [], query: asked };
  }
}

let deadLetters = 0;

function frame() {
  const me = whoami();
  const { name } = where();
  const link = ([path, title, picture, key]) =>
    h(
      "a",
      {
        href: `#/${path}`,
        class: TUCKED.includes(path) && "tucked",
        "aria-current": path === name && "page",
        title: `${title} (g ${key})`,
      },
      icon(picture),
      h("span", {}, title),
      path === "dead" && deadLetters > 0 && h("span", { class: "bubble", "aria-label": `${deadLetters} dead letters` }, short(deadLetters)),
    );
  const words = { live: "Live", connecting: "Reconnecting", offline: "Not connected" };
  const tucked = NAV.filter(([path]) => TUCKED.includes(path));
  const side = h(
    "nav",
    { class: "side", "aria-label": "Pages" },
    h("a", { class: "brand", href: "#/", "aria-label": "Roundtrip, overview" }, mark(), h("span", {}, "Roundtrip")),
    h(
      "div",
      { class: "links" },
      NAV.map(link),
      h(
        "button",
        { type: "button", class: `rest${TUCKED.includes(name) ? " here" : ""}`, popovertarget: "more" },
        icon("menu"),
        h("span", {}, "More"),
      ),
    ),
    h(
      "div",
      { class: "foot" },
      h("span", { class: `connection ${live.connection()}`, role: "status" }, words[live.connection()]),
      who(me),
      tools(),
    ),
    h(
      "div",
      { class: "sheet", id: "more", popover: "auto", role: "group", "aria-label": "More pages" },
      tucked.map(link),
      h("div", { class: "foot" }, who(me), tools()),
    ),
  );
  const skip = h(
    "a",
    {
      class: "skip",
      href: "#main",
      onclick: (event) => {
        event.preventDefault();
        main.focus();
      },
    },
    "To the content",
  );
  const old = app.querySelector(".side");
  if (old) patch(old, side);
  else app.replaceChildren(skip, side, h("div", { class: "stage" }, banner, main));
}

function who(me) {
  const role = me.roles.includes("operator") ? "operator" : me.roles.join(", ");
  const until = me.expires_at_ms && `until ${date(me.expires_at_ms)}`;
  return h("span", { class: "who", title: until }, h("span", {}, me.name), h("span", { class: "quiet" }, role));
}

const tools = () =>
  h(
    "span",
    { class: "tools" },
    h(
      "button",
      { type: "button", class: "bare", onclick: nextTheme, title: `Theme: ${theme()}`, "aria-label": `Theme: ${theme()}. Change` },
      icon("theme"),
      h("span", { class: "word" }, `Theme: ${theme()}`),
    ),
    token() &&
      h(
        "button",
        { type: "button", class: "bare", onclick: logOut, title: "Log out", "aria-label": "Log out" },
        icon("out"),
        h("span", { class: "word" }, "Log out"),
      ),
  );

/** Says that what is shown is not of now, once that has lasted. */
let lost = 0;
function tellOfConnection() {
  clearTimeout(lost);
  if (live.connection() === "live") {
    banner.hidden = true;
    return;
  }
  lost = setTimeout(() => {
    banner.replaceChildren(
      icon("away"),
      h("span", {}, h("strong", {}, "The server does not answer."), ` This is how it stood at ${time(shownAt)}; it goes on by itself.`),
      h("button", { type: "button", onclick: () => live.connect() }, "Try now"),
    );
    banner.hidden = false;
  }, PATIENCE_MS);
}

const mark = () =>
  h(
    "svg",
    { class: "mark", viewBox: "0 0 32 32", "aria-hidden": "true" },
    h("rect", { width: 32, height: 32, rx: 7 }),
    h("path", { d: "M8 12h13l-3.5-3.5M24 20H11l3.5 3.5" }),
  );

/** A page on show: it is loaded, shown, and brought up to date until another one takes its place. */
async function show() {
  page?.leave();
  const { name, rest, query } = where();
  const { hash } = location;
  const own = (page = {
    over: false,
    timer: 0,
    due: 0,
    busy: false,
    again: false,
    leave() {
      this.over = true;
      clearTimeout(this.timer);
      clearTimeout(this.due);
      this.stop?.();
    },
  });
  frame();
  document.getElementById("more")?.togglePopover(false);
  document.querySelector("dialog[open]")?.close();
  const loader = Object.hasOwn(PAGES, name) && PAGES[name];
  if (!loader || location.pathname !== "/") {
    document.title = "No page · Roundtrip";
    return instead(noPage(loader ? location.pathname : `#/${[name, ...rest].join("/")}`));
  }
  main.setAttribute("aria-busy", "true");
  let module;
  try {
    module = await loader(rest);
  } catch {
    if (!own.over) {
      instead(away(show));
      own.timer = setTimeout(show, AGAIN_MS);
    }
    return;
  }
  if (own.over) return;
  const made = module.page({ rest, query, refresh: () => own.refresh() });
  document.title = `${made.title} · Roundtrip`;
  let shown = false;
  own.refresh = async () => {
    if (own.over) return;
    clearTimeout(own.timer);
    clearTimeout(own.due);
    own.due = 0;
    if (own.busy) {
      own.again = true;
      return;
    }
    own.busy = true;
    try {
      const data = await made.load();
      if (own.over) return;
      const kind = `${name}/${rest.length}`;
      const fresh = h("div", { class: "page", "data-page": kind, "data-at": hash }, made.view(data));
      // The same page with another question keeps what is typed and open.
      if (main.firstElementChild?.dataset.page === kind) patch(main.firstElementChild, fresh);
      else {
        main.replaceChildren(fresh);
        scrollTo(0, 0);
      }
      shown = true;
      shownAt = Date.now();
      main.removeAttribute("aria-busy");
      await made.after?.(main.firstElementChild, data);
    } catch (error) {
      if (own.over || error.status === 401) return;
      // What was shown stays; the frame says that it is not of now.
      if (!shown) instead(failed(error, () => own.refresh()));
      else if (error.status !== 0) toast(`${error.title ?? "Not up to date"}: ${error.message}`);
    } finally {
      own.busy = false;
      if (!own.over) {
        clearTimeout(own.timer);
        own.timer = setTimeout(() => own.refresh(), own.again ? SETTLE_MS : shown ? IDLE_MS : AGAIN_MS);
        own.again = false;
      }
    }
  };
  const wants = made.wants ?? (() => true);
  own.stop = live.listen((event, data) => {
    if (event === "state" || own.due) return;
    if (event === "open" || event === "reset" || wants(event, data))
      own.due = setTimeout(() => own.refresh(), event === "open" ? 0 : SETTLE_MS);
  });
  await own.refresh();
}

/** Shows something else in place of a page. */
function instead(what) {
  main.removeAttribute("aria-busy");
  main.replaceChildren(h("div", { class: "page", "data-at": location.hash }, what));
}

async function countDead() {
  const { counts } = await get(at(["counts"])).catch(() => ({ counts: [] }));
  // Whoever was logged out meanwhile has no frame to show it in.
  if (!page) return;
  deadLetters = counts.filter((one) => one.state === "dead").reduce((sum, one) => sum + one.requests, 0);
  frame();
}

function logOut() {
  setToken(null);
  page?.leave();
  live.disconnect();
  logIn("You are logged out.");
}

/** Asks for a token, and says why. */
function logIn(said) {
  page?.leave();
  page = null;
  live.disconnect();
  const field = h("input", {
    id: "token",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    "aria-describedby": "how",
  });
  const submit = (event) => {
    event.preventDefault();
    setToken(field.value);
    start();
  };
  document.title = "Log in · Roundtrip";
  app.replaceChildren(
    h(
      "main",
      { class: "login" },
      h(
        "form",
        { onsubmit: submit },
        brand(),
        h("h1", {}, "Log in"),
        said && h("p", { class: "trouble", role: "alert" }, said),
        h("label", { for: "token" }, "Token"),
        field,
        h("button", { type: "submit", class: "primary" }, "Log in"),
        h("p", { class: "quiet", id: "how" }, "Whoever runs the program makes one, or a link that logs you in by itself:"),
        h("pre", { class: "command", tabindex: "0" }, "roundtrip token create --role operator --link"),
      ),
    ),
  );
  field.focus();
}

function refused() {
  const until = token() && expiry(token());
  // Several calls may be told so at once; the first one says why.
  if (!token()) return app.querySelector(".login form") ?? logIn(null);
  if (until && until < Date.now()) logIn(`Your token expired ${span(Date.now() - until)} ago. Ask for a new one.`);
  else logIn("This token is not accepted: it was signed with another key, or it is cut short.");
  setToken(null);
}

/** Shows something without the frame, which nobody is logged in for. */
const alone = (what) => app.replaceChildren(h("main", { class: "alone" }, brand(), what));

const brand = () => h("div", { class: "brand" }, mark(), h("span", {}, "Roundtrip"));

let again = 0;
async function start() {
  clearTimeout(again);
  try {
    const me = await get(at(["me"]));
    setMe(me);
    setServerTime(me.now_ms);
    if (!me.roles.some((role) => role === "viewer" || role === "operator")) {
      document.title = "You may not look · Roundtrip";
      const leave = h("button", { type: "button", class: "primary", onclick: logOut }, "Log in as somebody else");
      return alone(mayNotLook(me, leave));
    }
    app.replaceChildren();
    live.connect();
    countDead();
    await show();
  } catch (error) {
    if (error.status === 401) return;
    document.title = "Not connected · Roundtrip";
    alone(failed(error, start));
    again = setTimeout(start, AGAIN_MS);
  }
}

// Keys: g and a letter goes to a page, / searches, ? tells.
let went = 0;
function key(event) {
  if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "g") {
    went = Date.now();
    return;
  }
  const target = Date.now() - went < 1500 && NAV.find(([, , , letter]) => letter === event.key);
  went = 0;
  if (target) location.hash = `#/${target[0]}`;
  else if (event.key === "/") {
    event.preventDefault();
    const field = document.getElementById("search");
    if (field) field.focus();
    else location.hash = "#/requests?focus=1";
  } else if (event.key === "?") help();
}

function help() {
  const keys = [...NAV.map(([, title, , letter]) => [`g ${letter}`, title]), ["/", "Search requests"], ["?", "This list"]];
  const box = h(
    "dialog",
    { "aria-label": "Keys" },
    h(
      "form",
      { method: "dialog" },
      h("h2", {}, "Keys"),
      h(
        "dl",
        { class: "keys" },
        keys.map(([name, does]) => h("div", {}, h("dt", {}, h("kbd", {}, name)), h("dd", {}, does))),
      ),
      h("div", { class: "dialog-actions" }, h("button", { type: "submit" }, "Close")),
    ),
  );
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

wear();
tokenFromLink();
onUnknown(refused);
let deadTimer = 0;
live.listen((event) => {
  if (event === "state" && page) {
    frame();
    tellOfConnection();
  }
  if (["died", "rearmed", "ended", "open", "reset"].includes(event) && page)
    deadTimer ||= setTimeout(() => {
      deadTimer = 0;
      countDead();
    }, SETTLE_MS);
  if (event === "unknown") get(at(["me"])).catch(() => {});
});
/** Whoever came to another page reads on there; whoever types already goes on typing. */
function toContent() {
  if (!document.activeElement?.closest("input, select, textarea, dialog")) main.focus({ preventScroll: true });
}

addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) {
    tokenFromLink();
    start();
  } else if (page) {
    // Another page under a path that has none is under the right one.
    if (location.pathname !== "/") location.replace(`/${location.hash}`);
    else show().then(toContent);
  }
});
addEventListener("keydown", key);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.refresh());
start();
