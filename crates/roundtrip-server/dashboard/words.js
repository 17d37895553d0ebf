// Numbers, times and names as people read them.

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

/** How far the server's clock is ahead of this machine's. */
let ahead_ms = 0;

export const setServerTime = (now_ms) => {
  ahead_ms = now_ms - Date.now();
};
export const now = () => Date.now() + ahead_ms;

export const count = (n) => whole.format(n);

/** A count in little room: 12,345 is 12.3k. */
export function short(n) {
  if (n < 10_000) return whole.format(n);
  if (n < 1_000_000) return `${(n / 1000).toFixed(n < 100_000 ? 1 : 0)}k`;
  return `${(n / 1_000_000).toFixed(1)}M`;
}

export function rate(perSecond) {
  if (!perSecond) return "0/s";
  if (perSecond < 0.095) return `${(perSecond * 60).toFixed(1)}/min`;
  return `${perSecond < 10 ? perSecond.toFixed(1) : short(Math.round(perSecond))}/s`;
}

/** A length of time: its two largest units at the most. */
export function span(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const parts = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const at = parts.findIndex(([, size]) => s >= size);
  const [unit, size] = parts[at];
  const [nextUnit, nextSize] = parts[at + 1] ?? [];
  const rest = nextSize ? Math.floor((s % size) / nextSize) : 0;
  return `${Math.floor(s / size)} ${unit}${rest ? ` ${rest} ${nextUnit}` : ""}`;
}

/** The largest unit of a length of time alone. */
export function about(ms) {
  return span(ms).split(" ").slice(0, 2).join(" ");
}

export const age = (at_ms) => span(Math.max(0, now() - at_ms));
export const ago = (at_ms) => (now() - at_ms < 1000 ? "just now" : `${age(at_ms)} ago`);
export const time = (at_ms) => clock.format(at_ms);
export const date = (at_ms) => day.format(at_ms);

/** A time on an axis that is so many seconds long. */
export const axisTime = (at_ms, length_s) => (length_s < 600 ? clock : length_s > 172_800 ? weekday : minute).format(at_ms);

/** The ends of a long id. */
export function brief(id, ends = 6) {
  const bare = id.startsWith("0x") ? id.slice(2) : id;
  return bare.length <= ends * 2 + 1 ? id : `${id.slice(0, id.length - bare.length + ends)}…${id.slice(-4)}`;
}

export function gwei(wei) {
  const n = Number(wei) / 1e9;
  return `${n >= 100 ? whole.format(Math.round(n)) : Number(n.toPrecision(4))} gwei`;
}

const ONE = 10n ** 18n;
/** Digits of an amount that count. */
const DIGITS = 4;

/** An amount of wei in its chain's own coin; what is left out of it is lost, or makes it one more. Pure. */
export function amount(wei, currency = "ETH", rounded = "down") {
  const all = BigInt(wei);
  const small = all < ONE ? 18 - String(all).length : 0;
  const unit = 10n ** BigInt(Math.max(0, 18 - DIGITS - small));
  const kept = ((all + (rounded === "up" ? unit - 1n : 0n)) / unit) * unit;
  const shown = String(kept % ONE).padStart(18, "0").replace(/0+$/, "");
  return `${whole.format(kept / ONE)}${shown && "."}${shown} ${currency}`;
}

/** A sentence's first letter. */
export const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** Bytes as a dump: places, hexadecimal, and what can be read of them. */
export function dump(bytes, most = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, most); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${text}`);
  }
  if (bytes.length > most) lines.push(`… ${count(bytes.length - most)} bytes more`);
  return lines.join("\n");
}

/** The pieces of JSON text as they are written. */
const PIECES = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s"{}[\],:]+/g;

/** The members of a JSON object as they are written: a number that is read may lose digits. Pure. */
export function members(text) {
  const found = {};
  let depth = 0,
    name = null,
    from = 0;
  for (const { 0: piece, index } of text.matchAll(PIECES)) {
    if (depth === 1) {
      if (piece === "," || piece === "}") {
        if (name !== null) found[name] = text.slice(from, index).trim();
        name = null;
      } else if (name === null) name = JSON.parse(piece);
      else if (piece === ":") from = index + 1;
    }
    if (piece === "{" || piece === "[") depth += 1;
    if (piece === "}" || piece === "]") depth -= 1;
  }
  return found;
}

/** JSON text in lines, every number with its own digits. Pure. */
export function indented(text) {
  let [lines, depth, last] = ["", 0, ""];
  for (const [piece] of text.matchAll(PIECES)) {
    const [closes, opened] = [piece === "}" || piece === "]", last === "{" || last === "["];
    if (closes) depth -= 1;
    if (closes ? !opened : opened || last === ",") lines += `\n${"  ".repeat(depth)}`;
    lines += piece === ":" ? ": " : piece;
    if (piece === "{" || piece === "[") depth += 1;
    last = piece;
  }
  return lines;
}

/** What a state is called on a route: an answer that is kept for whoever asks waits for nobody. */
export const stateOn = (route, state) => (state === "ready" && route?.delivery === "keep" ? "kept" : state);

/** What kind of error it is, in a word or two. */
export const CLASSES = { transport: "no way to it", retryable: "failed too often", fatal: "cannot work", crash: "workers lost" };

/** A dead letter that ended is one no longer. */
export const shownState = (request) => (request.state === "dead" && request.ended_at_ms !== undefined ? "dropped" : request.state);

export const STATES = {
  dropped: ["dropped", "A dead letter that was given up, by a person or since it lay for long enough"],
  held: ["held", "Not yet due, or not yet final enough to be worked on"],
  queued: ["queued", "Ready for a worker"],
  leased: ["leased", "In a worker's hand"],
  waiting: ["waiting", "Answered, and waits until its origin is final"],
  ready: ["ready", "Answered, to be sent"],
  kept: ["kept", "Answered; whoever asks gets it, and nobody is sent it"],
  assigned: ["sent", "On a slot of a lane, its bytes stored"],
  included: ["in a block", "Its transaction is in a block"],
  confirmed: ["confirmed", "At its route's depth"],
  dead: ["dead", "Waits for a person"],
  settled: ["settled", "Ended well"],
  expired: ["expired", "Its deadline came first"],
  withdrawn: ["withdrawn", "Taken back"],
  elsewhere: ["elsewhere", "Somebody else answered"],
};
