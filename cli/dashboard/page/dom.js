// Elements, made without HTML text: every name and error from a cluster goes through a text node or setAttribute, so markup
// in it stays text. Attributes that run code or that the Content-Security-Policy refuses (on*, style) are not accepted.

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (/^(on|style$)/.test(name)) throw new Error(`attribute ${name} is not allowed`);
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...flat(children));
  return element;
}

const flat = (children) => children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false);

export const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) =>
  make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
export const link = (address, ...children) => h("a", { href: address }, ...children);

// A path of path segments: each may hold any character.
export const path = (...segments) => "/" + segments.map(encodeURIComponent).join("/");

// The address with these parts of the query changed; undefined removes one.
export function withQuery(changes, address = location) {
  const query = new URLSearchParams(address.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return address.pathname + (text ? `?${text}` : "");
}

// Makes the children of `parent` look like `wanted`, and keeps what is there where it fits: the focus, a selection and the
// scroll position survive each update.
export function update(parent, wanted) {
  let old = parent.firstChild;
  for (const node of flat([wanted])) {
    const next = old?.nextSibling;
    if (!old) parent.append(node);
    else if (old.nodeName !== (node.nodeName ?? "#text") || old.id !== node.id) old.replaceWith(node);
    else if (old.nodeType !== Node.ELEMENT_NODE) setText(old, node.data ?? String(node));
    else {
      updateAttributes(old, node);
      update(old, [...node.childNodes]);
    }
    old = next;
  }
  while (old) {
    const next = old.nextSibling;
    old.remove();
    old = next;
  }
}

function setText(old, text) {
  if (old.data !== text) old.data = text;
}

function updateAttributes(old, node) {
  if (old === document.activeElement && old.nodeName === "INPUT") return;
  for (const { name } of [...old.attributes]) {
    // The user opens and closes <details>.
    if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...node.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.nodeName === "INPUT") old.value = node.value;
}
