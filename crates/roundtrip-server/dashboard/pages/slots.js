// A lane's window, slot by slot.

import { h } from "../dom.js";
import { count, plural } from "../words.js";

/** Most free slots that are drawn. */
const FREE_MAX = 24;
/** Most slots that are drawn. */
const DRAWN_MAX = 512;

const SAYS = { confirmed: "confirmed", included: "in a block", flight: "in flight", gap: "gap", cancel: "to be cancelled", free: "free" };

/** What each slot is, from the first that is not final to the end of the window. Pure. */
export function slots(lane) {
  const parcels = new Map(lane.parcels?.map((parcel) => [parcel.nonce, parcel]));
  // Until a slot is final, what the account did before it became a lane is not known: that is no gap.
  const lowest = Math.min(lane.settled || lane.next, ...parcels.keys());
  const found = [];
  for (let nonce = lowest; nonce < lane.next && found.length < DRAWN_MAX; nonce += 1) {
    const parcel = parcels.get(nonce);
    found.push({ nonce, parcel, kind: kindOf(parcel) });
  }
  const room = Math.max(0, lane.window - (lane.under_way ?? parcels.size));
  for (let n = 0; n < Math.min(room, FREE_MAX) && found.length < DRAWN_MAX; n += 1) found.push({ nonce: lane.next + n, kind: "free" });
  return found;
}

function kindOf(parcel) {
  if (!parcel) return "gap";
  if (parcel.cancelled) return "cancel";
  return parcel.stage === "assigned" ? "flight" : parcel.stage;
}

/** The slots as a strip; each that carries something leads to it. */
export function strip(lane, chosen) {
  const found = slots(lane);
  const tally = {};
  for (const { kind } of found) tally[kind] = (tally[kind] ?? 0) + 1;
  const said = Object.entries(tally)
    .map(([kind, n]) => `${count(n)} ${SAYS[kind]}`)
    .join(", ");
  return h(
    "div",
    { class: "window" },
    h(
      "div",
      { class: "slots", role: "group", "aria-label": `Slots of ${lane.name}: ${said || "none"}` },
      found.map(({ nonce, parcel, kind }) => {
        const attempts = parcel ? `, ${plural(parcel.attempts.length, "attempt")}` : "";
        const says = `Slot ${nonce}: ${SAYS[kind]}${attempts}`;
        return parcel
          ? h(
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
            )
          : h("span", { class: `slot ${kind}`, "data-nonce": nonce, title: says });
      }),
    ),
    h("p", { class: "range mono quiet" }, found.length ? `slot ${found[0].nonce} … next ${lane.next}` : `next ${lane.next}`),
  );
}

export const legend = () =>
  h(
    "ul",
    { class: "legend" },
    ["confirmed", "included", "flight", "cancel", "gap", "free"].map((kind) =>
      h("li", {}, h("span", { class: `slot ${kind}` }), SAYS[kind]),
    ),
  );
