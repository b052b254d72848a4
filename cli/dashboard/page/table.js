// Tables: one shape for all pages. Sorting, paging and filters are parts of the address, so each state can be pasted.
import { h, link, withQuery } from "./dom.js";
import { count, plural } from "./units.js";

const ROWS = 100; // of a table in the page at a time

// columns: [{ title, cell(row), number, sort(row) }]. `page` names the parameter of a table that is paged here;
// `next` and `total` come with one that the server pages. `empty` says what to do where there is no row.
export function table(caption, columns, rows, { empty, query, page, next, total }) {
  const heading = h("h2", {}, caption, h("span", { class: "muted" }, ` ${count(total ?? rows.length)}`));
  if (rows.length === 0) return h("section", {}, heading, h("p", { class: "empty" }, empty));
  const wanted = page && query.get(`${page}_sort`);
  const by = wanted && columns.find((column) => column.sort && column.title === wanted.replace(/^-/, ""));
  if (by) rows = sorted(rows, by.sort, wanted.startsWith("-"));
  const first = page ? Math.min(Number(query.get(page) ?? 0) * ROWS, Math.floor((rows.length - 1) / ROWS) * ROWS) : 0;
  const shown = page ? rows.slice(first, first + ROWS) : rows;
  return h("section", {},
    heading,
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      h("table", { "aria-label": caption },
        h("thead", {}, h("tr", {}, columns.map((column) => head(column, page, wanted)))),
        h("tbody", {}, shown.map((row) => h("tr", {}, columns.map((column, index) =>
          h(index === 0 ? "th" : "td", { scope: index === 0 && "row", class: column.number && "number" },
            column.cell(row) ?? "—"))))))),
    pager({ page, first, shown: shown.length, rows: rows.length, next, total, query }));
}

function head(column, page, wanted) {
  const attributes = { scope: "col", class: column.number && "number" };
  if (!column.sort || !page) return h("th", attributes, column.title);
  const current = wanted?.replace(/^-/, "") === column.title;
  const down = current ? !wanted.startsWith("-") : Boolean(column.number);
  return h("th", { ...attributes, "aria-sort": current ? (down ? "ascending" : "descending") : "none" },
    link(withQuery({ [`${page}_sort`]: (down ? "-" : "") + column.title, [page]: undefined }), column.title,
      current && h("span", { "aria-hidden": "true" }, down ? " ▲" : " ▼")));
}

function sorted(rows, key, down) {
  const order = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
  return [...rows].sort((a, b) => (down ? order(key(b), key(a)) : order(key(a), key(b))));
}

function pager({ page, first, shown, rows, next, total, query }) {
  const links = [];
  const add = (rel, text, changes) => links.push(h("a", { href: withQuery(changes), rel }, text));
  if (page && first > 0) add("prev", "Previous page", { [page]: first === ROWS ? undefined : first / ROWS - 1 });
  if (page && first + shown < rows) add("next", "Next page", { [page]: first / ROWS + 1 });
  if (!page && query.has("page_token")) add("prev", "First page", { page_token: undefined });
  if (next) add("next", "Next page", { page_token: next });
  if (links.length === 0) return undefined;
  const range = page ? `${count(first + 1)} to ${count(first + shown)} of ${count(rows)}`
    : `${plural(shown, "row")} of ${count(total)}`;
  return h("p", { class: "pager" }, range, " ", links);
}

// A field: its text becomes that part of the address.
export const filter = (name, label, query) =>
  h("label", {}, `${label} `, h("input", { type: "search", "data-query": name, value: query.get(name) ?? "", spellcheck: "false" }));

export const choice = (name, label, options, query) =>
  h("label", {}, `${label} `, h("select", { "data-query": name },
    options.map(([value, text]) => h("option", { value, selected: value === (query.get(name) ?? "") }, text))));

// Facts as a list of names and values; those without a value are left out.
export const facts = (entries) =>
  h("dl", { class: "facts" }, entries.filter(([, value]) => value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
