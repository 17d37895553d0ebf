// The stream of updates: server-sent events read with fetch, which can send a token; resumed where it broke.

import { authorization, token } from "./api.js";

const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 5000;
/** The server says something every 15 s; silence for longer means that the way is cut. */
const SILENCE_MS = 40_000;

const listeners = new Set();
let state = "connecting";
let last = null;
let stop = null;

/** Tells of each update `(event, data)`, of `reset` and `open`, and of the connection's `state`. */
export function listen(told) {
  listeners.add(told);
  return () => listeners.delete(told);
}

const tell = (event, data) => listeners.forEach((told) => told(event, data));

function become(next) {
  if (state === next) return;
  state = next;
  tell("state", next);
}

export const connection = () => state;

export function disconnect() {
  stop?.abort();
  stop = null;
  last = null;
}

export async function connect() {
  disconnect();
  const own = (stop = new AbortController());
  let wait = FIRST_WAIT_MS;
  while (!own.signal.aborted) {
    await looked();
    const answered = await follow(own.signal).catch(() => document.hidden);
    if (own.signal.aborted) return;
    if (answered === "unknown") return become("offline");
    wait = answered ? FIRST_WAIT_MS : Math.min(wait * 2, LONGEST_WAIT_MS);
    if (!document.hidden) become("connecting");
    await new Promise((then) => setTimeout(then, wait));
  }
}

/**
 * Settles once somebody looks at the page. A browser has few connections to one server: pages in the background that kept
 * theirs would leave none to the one in front.
 */
const looked = () =>
  new Promise((then) => {
    if (!document.hidden) return then();
    document.addEventListener("visibilitychange", then, { once: true });
  });

/** Reads one connection to its end, or until nobody looks any more; whether there was one. */
async function follow(ended) {
  const cut = new AbortController();
  const abort = () => cut.abort();
  const hide = () => document.hidden && abort();
  ended.addEventListener("abort", abort);
  document.addEventListener("visibilitychange", hide);
  const silence = () => setTimeout(abort, SILENCE_MS);
  let timer = silence();
  try {
    const headers = { ...authorization(), ...(last ? { "last-event-id": last } : {}) };
    const response = await fetch("/v1/updates", { headers, signal: cut.signal, cache: "no-store" });
    if (response.status === 401 || response.status === 403) {
      tell("unknown");
      return token() ? "unknown" : false;
    }
    if (!response.ok) return false;
    become("live");
    tell("open");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return true;
      clearTimeout(timer);
      timer = silence();
      text += value;
      const blocks = text.split("\n\n");
      text = blocks.pop();
      blocks.forEach(take);
    }
  } finally {
    clearTimeout(timer);
    ended.removeEventListener("abort", abort);
    document.removeEventListener("visibilitychange", hide);
  }
}

/** One event; its data stays text until somebody wants it. */
function take(block) {
  let event = null,
    data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) last = line.slice(4);
    else if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data = line.slice(6);
  }
  if (!event) return;
  if (event === "reset") last = null;
  tell(event, data);
}
