// What a person orders on more than one page, each after a question.

import { at, post } from "../api.js";
import { confirm } from "../parts.js";

async function order(path, { told, ...said }, refresh) {
  const work = async () => {
    await post(path);
    return told;
  };
  if (await confirm({ ...said, work })) refresh();
}

const ROUTE = {
  pause: (name) => ({
    title: `Pause ${name}?`,
    text: "Workers get none of its requests any longer. What they have in hand goes on, and new requests still come in.",
    action: "Pause",
    told: `${name} is paused`,
  }),
  resume: (name) => ({ title: `Resume ${name}?`, text: "Workers get its requests again.", action: "Resume", told: `${name} goes on` }),
};

/** Pauses or resumes a route. */
export const turn = (name, which, refresh) => order(at(["routes", name, which]), ROUTE[which](name), refresh);

/** Lets a lane go on. */
export const resumeLane = (name, refresh) =>
  order(
    at(["lanes", name, "resume"]),
    { title: `Resume ${name}?`, text: "It takes new transactions again.", action: "Resume", told: `${name} goes on` },
    refresh,
  );
