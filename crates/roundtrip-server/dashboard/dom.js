// Elements, and how a page is brought up to date without losing focus, selection or scroll.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "rect", "circle", "line", "g", "title", "polyline"]);

/** An element. `on…` are handlers, `class`, `href` and the like attributes; false and null are left out. */
export function h(tag, attributes, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element[name] = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === false || child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Makes `old` look like `fresh`. What has `data-keep` keeps its inside; `data-key` tells list items apart. */
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  attributes(old, fresh);
  if (!old.hasAttribute("data-keep")) patchChildren(old, fresh);
  return old;
}

function attributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    // Whoever opened a detail or a dialog keeps it open.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) === value) continue;
    // The page's policy lets scripts change styles, and no attribute.
    if (name === "style") old.style.cssText = fresh.style.cssText;
    else old.setAttribute(name, value);
  }
  for (const handler of ["onclick", "onchange", "oninput", "onsubmit", "onkeydown", "ontoggle"]) {
    if (old[handler] !== fresh[handler]) old[handler] = fresh[handler];
  }
  // What somebody types or chooses stays theirs.
  if ("value" in old && old !== document.activeElement && old.value !== fresh.value) old.value = fresh.value;
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);

export function patchChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) {
    const key = keyOf(child);
    if (key) keyed.set(key, child);
  }
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    const same = key ? keyed.get(key) : place && !keyOf(place) ? place : null;
    if (!same) {
      old.insertBefore(wanted, place);
      continue;
    }
    if (same !== place) old.insertBefore(same, place);
    const next = same.nextSibling;
    patch(same, wanted);
    place = next;
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
