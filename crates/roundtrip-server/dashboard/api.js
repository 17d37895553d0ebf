// The public API, as everybody has it. A token lives in this browser until it expires or its bearer logs out.

import { members } from "./words.js";

const KEY = "roundtrip-token";

/** Why a call was refused, in the server's words. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

export const token = () => localStorage.getItem(KEY);
export const setToken = (value) => (value ? localStorage.setItem(KEY, value.trim()) : localStorage.removeItem(KEY));

/** A token out of the fragment of a link; it is taken out of the address, too. */
export function tokenFromLink() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return;
  setToken(decodeURIComponent(found[1]));
  history.replaceState(null, "", "#/");
}

/** What a token says of its end, in milliseconds; only for words, the server decides. */
export function expiry(value) {
  try {
    return JSON.parse(atob(value.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"))).exp * 1000;
  } catch {
    return null;
  }
}

let whenUnknown = () => {};
/** Who is told that the token is not, or no longer, taken. */
export const onUnknown = (told) => {
  whenUnknown = told;
};

export const authorization = () => (token() ? { authorization: `Bearer ${token()}` } : {});

async function send(path, { method = "GET", body, signal } = {}) {
  const headers = authorization();
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No connection", "The server cannot be reached. It may be restarting; this page tries again by itself.");
  }
  if (response.ok) return response;
  if (response.status === 401) whenUnknown();
  const told = await response.json().catch(() => ({}));
  throw new Problem(response.status, told.title ?? response.statusText, told.detail);
}

export const get = async (path, signal) => (await send(path, { signal })).json();
/** A request, and the text of its bodies as they came. */
export async function getRequest(id) {
  const text = await (await send(at(["requests", id]))).text();
  return { ...JSON.parse(text), texts: members(text) };
}
export const post = async (path, body = {}) => (await send(path, { method: "POST", body })).json();
export const bytes = async (path) => new Uint8Array(await (await send(path)).arrayBuffer());

/** A path with its parts escaped, and a query without what is empty. */
export function at(parts, query = {}) {
  const path = `/v1/${parts.map(encodeURIComponent).join("/")}`;
  const wanted = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return wanted.length ? `${path}?${new URLSearchParams(wanted)}` : path;
}

let me = { name: "", roles: [] };
export const whoami = () => me;
export const setMe = (found) => {
  me = found;
};
/** Whether this person may change anything. */
export const operates = () => me.roles.includes("operator");
