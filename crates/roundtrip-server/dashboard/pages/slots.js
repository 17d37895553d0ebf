// A lane's window, slot by slot.

import { h } from "../dom.js";
import { count, plural } from "../words.js";

/** Most free slots that are drawn. */
const FREE_MAX = 24;
/** Most slots that are drawn. */
const DRAWN_MAX = 512;

const SAYS = { confirmed: "confirmed", included: "in a block", flight: "in flight", gap: "gap", cancel: "to be cancelled", free: "free" };

const roomOf = (lane) => Math.max(0, lane.window - (lane.under_way ?? lane.parcels?.length ?? 0));

/** What each slot is, from the first that is not final to the end of the window. Pure. */
export function slots(lane) {
  const parcels = new Map(lane.parcels?.map((parcel) => [parcel.nonce, parcel]));
  const lowest = Math.min(lane.settled, lane.next, ...parcels.keys());
  const found = [];
  for (let nonce = lowest; nonce < lane.next && found.length < DRAWN_MAX; nonce += 1) {
    const parcel = parcels.get(nonce);
    found.push({ nonce, parcel, kind: kindOf(parcel) });
  }
  const room = Math.min(roomOf(lane), FREE_MAX);
  for (let n = 0; n < room && found.length < DRAWN_MAX; n += 1) found.push({ nonce: lane.next + n, kind: "free" });
  return found;
}

function kindOf(parcel) {
  if (!parcel) return "gap";
  if (parcel.cancelled) return "cancel";
  return parcel.stage === "assigned" ? "flight" : parcel.stage;
}

/** Slots of one kind that follow each other. Pure. */
export function runs(found) {
  const parts = [];
  for (const slot of found) {
    const last = parts.at(-1);
    if (last?.kind === slot.kind) last.slots.push(slot);
    else parts.push({ kind: slot.kind, slots: [slot] });
  }
  return parts;
}

/** How many slots there are of each kind, those that are free beyond what is drawn too. */
function tally(lane) {
  const counts = {};
  for (const { kind } of slots(lane)) counts[kind] = (counts[kind] ?? 0) + 1;
  return { ...counts, free: roomOf(lane) };
}

function slotView(lane, { nonce, parcel, kind }, chosen) {
  const attempts = parcel ? `, ${plural(parcel.attempts.length, "attempt")}` : "";
  const says = `Slot ${nonce}: ${SAYS[kind]}${attempts}`;
  if (!parcel) return h("span", { class: `slot ${kind}`, "data-nonce": nonce, title: says });
  return h(
    "a",
    {
      class: `slot ${kind}`,
      "data-nonce": nonce,
      href: `#/lanes/${encodeURIComponent(lane.name)}/${nonce}`,
      "aria-label": says,
      title: says,
      "aria-current": String(nonce) === chosen && "true",
    },
    parcel.attempts.length > 1 && h("span", {}, parcel.attempts.length),
  );
}

/** The first slot of a run; of a gap the last one too, since somebody will look for it on the chain. */
function caption({ kind, slots: own }, more) {
  const [first, last] = [own[0].nonce, own.at(-1).nonce];
  if (kind === "free") return `next ${first}${more > 0 ? `, ${count(more)} more free` : ""}`;
  return kind === "gap" && last > first ? `${first}–${last}` : `${first}`;
}

/** The slots as a strip; each that carries something leads to it. */
export function strip(lane, chosen) {
  const found = slots(lane);
  const said = Object.entries(tally(lane))
    .filter(([, n]) => n > 0)
    .map(([kind, n]) => `${count(n)} ${SAYS[kind]}`)
    .join(", ");
  const more = roomOf(lane) - found.filter(({ kind }) => kind === "free").length;
  return h(
    "div",
    { class: "slots", role: "group", "aria-label": `Slots of ${lane.name}: ${said || "none"}` },
    runs(found).map((run) =>
      h(
        "div",
        { class: `run ${run.kind}` },
        h(
          "div",
          { class: "row" },
          run.slots.map((slot) => slotView(lane, slot, chosen)),
        ),
        h("span", { class: "caption mono" }, caption(run, more)),
      ),
    ),
  );
}

/** What each kind of slot looks like, and of a lane how many there are. */
export function legend(lane) {
  const counts = lane && tally(lane);
  return h(
    "ul",
    { class: "legend" },
    ["confirmed", "included", "flight", "cancel", "gap", "free"]
      .filter((kind) => !counts || counts[kind] > 0)
      .map((kind) => {
        const many = counts && h("strong", {}, count(counts[kind]));
        return h("li", { class: kind }, h("span", { class: `slot ${kind}` }), many, SAYS[kind]);
      }),
  );
}
