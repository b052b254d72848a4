// The frame around the pages: which page an address shows, the stream that it follows, theme and keyboard.
import { logIn, Stream } from "./api.js";
import { cluster, nodes } from "./cluster.js";
import { h, update, withQuery } from "./dom.js";
import { artifact, artifacts, key, keys } from "./keys.js";
import { node } from "./node.js";
import { tasks } from "./tasks.js";
import { transfer, transfers } from "./transfers.js";
import { clock } from "./units.js";

// A page has the path of its document: { view, parameters, under, title(query), render(document, query) }.
const PAGES = {
  "/": cluster, "/nodes": nodes, "/node": node, "/keys": keys, "/key": key, "/artifacts": artifacts,
  "/artifact": artifact, "/transfers": transfers, "/transfer": transfer, "/tasks": tasks,
};
const main = document.getElementById("main");
const state = document.getElementById("stream");
const help = document.getElementById("help");

let page;
let stream;
let followed = ""; // the address of the stream
let current; // its document

function show() {
  const query = new URLSearchParams(location.search);
  const before = page;
  page = PAGES[location.pathname];
  const title = page?.title(query) ?? "Not found";
  document.title = `${title} · TensorCast`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.pathname === (page?.under ?? "")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const address = page && addressOf(page, query);
  if (address !== followed) {
    stream?.stop();
    followed = address;
    current = undefined;
    // Another filter of the same page: what is there stays, and with it the focus, until the document comes.
    if (page !== before || !page) {
      update(main, [h("h1", {}, title), h("p", { class: "empty" }, page ? "Loading" : "No page has this address; choose one above.")]);
    }
    stream = page && new Stream(address, take, tell);
  } else if (current !== undefined) render();
}

function addressOf({ view, parameters }, query) {
  const wanted = new URLSearchParams({ view, page_size: 100 });
  for (const name of [...parameters, "page_token"]) {
    if (query.has(name)) wanted.set(name, query.get(name));
  }
  return `/api/events?${wanted}`;
}

function render() {
  const query = new URLSearchParams(location.search);
  update(main, [h("h1", {}, page.title(query)), page.render(current, query)]);
}

function take(next) {
  current = next;
  render();
}

function tell({ live, since, problem, login }) {
  if (login) return logIn();
  state.className = live ? "live" : "stale";
  const text = live ? "Live" : `Stale${since ? ` since ${clock(since)}` : ""}: ${problem}`;
  if (state.textContent !== text) state.textContent = text;
  if (!live && current === undefined) {
    update(main, [h("h1", {}, page.title(new URLSearchParams(location.search))), h("p", { class: "empty" }, problem)]);
  }
}

function go(address, { replace = false } = {}) {
  const samePath = new URL(address, location).pathname === location.pathname;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  show();
  if (!samePath) {
    window.scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const address = new URL(link.getAttribute("href"), location); // an <a> of SVG has no parts of its own
  if (address.origin !== location.origin || address.hash || !(address.pathname in PAGES)) return;
  event.preventDefault();
  go(address);
});
window.addEventListener("popstate", show);

let typing;
document.addEventListener("input", ({ target }) => {
  const name = target.dataset?.query;
  if (!name) return;
  clearTimeout(typing);
  typing = setTimeout(
    () => go(withQuery({ [name]: target.value, page: undefined, page_token: undefined }), { replace: true }), 200);
});

const themes = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
  localStorage.setItem("theme", theme);
}
const nextTheme = () => setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length]);
setTheme(themes.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
themeButton.addEventListener("click", nextTheme);

const toggleHelp = () => (help.open ? help.close() : help.showModal());
document.getElementById("shortcuts").addEventListener("click", toggleHelp);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const links = document.querySelectorAll("nav a");
  const pager = { "[": "prev", "]": "next" }[event.key];
  if (event.key === "?") toggleHelp();
  else if (help.open) return;
  else if (links[Number(event.key) - 1]) links[Number(event.key) - 1].click();
  else if (pager) main.querySelector(`a[rel=${pager}]`)?.click();
  else if (event.key === "/") main.querySelector("input[data-query]")?.focus();
  else if (event.key === "t") nextTheme();
  else return;
  event.preventDefault();
});

show();
