// Transfers: the swarm as it is now, what ran lately, and one transfer in all its parts.
import { bar, nodeLink, problemsOf } from "./cluster.js";
import { h, link, withQuery } from "./dom.js";
import { graph } from "./graph.js";
import { artifactLink } from "./keys.js";
import { choice, facts, table } from "./table.js";
import { timeline } from "./timeline.js";
import { between, bytes, clock, count, duration, instant, number, percent, place, plural, rate, share, short } from "./units.js";

const transferLink = (node, id) => link(`/transfer?${new URLSearchParams({ node, transfer: id })}`, h("code", { title: id }, short(id)));
const tookOf = (transfer) => between(transfer.queued, transfer.end);
const meanRate = (transfer) => (instant(transfer.start) && between(transfer.start, transfer.end) > 0
  ? number(transfer.bytes) / between(transfer.start, transfer.end) : 0);

function sourcesOf(transfer) {
  const names = [...new Set((transfer.sources ?? []).map((source) => `${source.source} (${source.lane || source.source_type})`))];
  return names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ") || undefined;
}

const errorOf = (transfer) => transfer.error?.message && h("span", { class: "bad" }, transfer.error.message);

// Columns of entries { node, transfer, bytes_per_second }.
const common = [
  { title: "transfer", cell: ({ node, transfer }) => transferLink(node, transfer.transfer_id) },
  { title: "to node", cell: ({ node }) => nodeLink(node), sort: ({ node }) => node },
  { title: "location", cell: ({ transfer }) => place(transfer.destination) },
  { title: "artifact", cell: ({ transfer }) => artifactLink(transfer.artifact_id) },
];
export const runningColumns = [
  ...common,
  { title: "progress", cell: ({ transfer }) => bar(share(transfer.bytes, transfer.bytes_total), `${bytes(transfer.bytes)} of ${bytes(transfer.bytes_total)}`),
    sort: ({ transfer }) => share(transfer.bytes, transfer.bytes_total) },
  { title: "rate", number: true, cell: (entry) => rate(entry.bytes_per_second ?? meanRate(entry.transfer)),
    sort: (entry) => entry.bytes_per_second ?? meanRate(entry.transfer) },
  { title: "running", number: true, cell: ({ transfer }) => (instant(transfer.start) ? duration(tookOf(transfer)) : "waits for its turn"),
    sort: ({ transfer }) => tookOf(transfer) },
  { title: "sources", cell: ({ transfer }) => sourcesOf(transfer) },
];
export const recentColumns = [
  ...common,
  { title: "ended", cell: ({ transfer }) => clock(transfer.end), sort: ({ transfer }) => instant(transfer.end) },
  { title: "took", number: true, cell: ({ transfer }) => duration(tookOf(transfer)), sort: ({ transfer }) => tookOf(transfer) },
  { title: "bytes", number: true, cell: ({ transfer }) => bytes(transfer.bytes), sort: ({ transfer }) => number(transfer.bytes) },
  { title: "rate", number: true, cell: ({ transfer }) => rate(meanRate(transfer)), sort: ({ transfer }) => meanRate(transfer) },
  { title: "sources", cell: ({ transfer }) => sourcesOf(transfer) },
  { title: "error", cell: ({ transfer }) => errorOf(transfer) },
];

const edgeColumns = [
  { title: "source", cell: (edge) => edge.source, sort: (edge) => edge.source },
  { title: "receiver", cell: (edge) => nodeLink(edge.receiver), sort: (edge) => edge.receiver },
  { title: "lane", cell: (edge) => edge.lane },
  { title: "rate", number: true, cell: (edge) => rate(edge.bytes_per_second), sort: (edge) => edge.bytes_per_second },
  { title: "bytes", number: true, cell: (edge) => bytes(edge.bytes), sort: (edge) => number(edge.bytes) },
  { title: "transfers", number: true, cell: (edge) => count(edge.transfers), sort: (edge) => edge.transfers },
];

export const transfers = {
  view: "transfers",
  parameters: ["zone", "rack"],
  under: "/transfers",
  title: (query) => ["Transfers", query.has("zone") && `zone ${query.get("zone") || "(no label)"}`,
    query.has("rack") && `rack ${query.get("rack") || "(no label)"}`].filter(Boolean).join(" · "),
  render(document, query) {
    const edges = document.edges ?? [];
    return [
      problemsOf(document.problems),
      query.has("zone") && h("p", {}, link("/transfers", "Transfers of all zones")),
      number(document.not_asked) > 0 && h("p", { class: "warn" },
        `${plural(document.asked, "node")} asked, ${count(document.not_asked)} not asked: choose a zone or rack in Cluster to see the others.`),
      h("section", {}, h("h2", {}, "Swarm"),
        edges.length === 0 ? h("p", { class: "empty" }, "No bytes move between nodes now. Start one: tensorcast get KEY, or tensorcast replicate KEY --to NODE")
          : [h("form", { class: "filters" }, choice("layout", "Columns", [["", "hops from the first sources"], ["place", "zones and racks"]], query)),
            h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Swarm" }, graph(document, query.get("layout") === "place"))]),
      table("Running", runningColumns, document.running ?? [], { query, page: "running", empty: "No transfer runs." }),
      edges.length > 0 && table("Edges", edgeColumns, edges, { query, page: "edges" }),
      table("Recent", recentColumns, document.recent ?? [], { query, page: "recent", empty: "No transfer ended since the daemons started." }),
      number(document.left_out) > 0 && h("p", { class: "muted" }, `${plural(document.left_out, "transfer")} left out; choose a rack to see fewer.`),
    ];
  },
};

const PARTS = { queue: "waiting for its turn", start: "until the first byte was asked for", moving: "moving bytes",
  starved: "no source had a chunk", gaps: "between chunks", finish: "after the last chunk" };

const partsTable = (secondsOf, query) => {
  const rows = Object.entries(PARTS).map(([part, text]) => ({ part, text, seconds: secondsOf[part] ?? 0 }));
  return table("Where the time went", [
    { title: "part", cell: (row) => row.part },
    { title: "share", cell: (row) => bar(share(row.seconds, secondsOf.total), percent(share(row.seconds, secondsOf.total))) },
    { title: "time", number: true, cell: (row) => duration(row.seconds) },
    { title: "what it is", cell: (row) => row.text },
  ], rows, { query, total: rows.length });
};

export const transfer = {
  view: "transfer",
  parameters: ["node", "transfer"],
  under: "/transfers",
  title: (query) => `Transfer ${short(query.get("transfer"))}${query.has("node") ? ` to ${query.get("node")}` : ""}`,
  render({ transfer, under_way, analysis }, query) {
    const hop = analysis.bounding_hop;
    const receiver = analysis.hops?.[0]?.node ?? query.get("node");
    const bounded = { part: analysis.bound.part, source: hop && hop.to === receiver ? hop.from : undefined };
    return [
      facts([
        ["state", transfer.error?.message ? errorOf(transfer) : h("span", { class: under_way ? "warn" : "good" }, under_way ? "running" : "done")],
        ["artifact", artifactLink(transfer.artifact_id)],
        ["to", [receiver && nodeLink(receiver), ` ${place(transfer.destination)}`]],
        ["bytes", number(transfer.bytes_total) > number(transfer.bytes) ? `${bytes(transfer.bytes)} of ${bytes(transfer.bytes_total)}` : bytes(transfer.bytes)],
        ["present before", number(transfer.bytes_present) > 0 && bytes(transfer.bytes_present)],
        ["rate", rate(meanRate(transfer))],
        ["took", duration(tookOf(transfer))],
        ["trace", transfer.trace_id && h("code", {}, transfer.trace_id)],
      ]),
      h("section", { class: "verdict", "aria-label": "What bounds it" },
        h("p", {}, h("strong", {}, `Bounded by ${analysis.bound.part}. `), analysis.bound.why),
        hop && h("p", {}, h("strong", {}, `Bounding hop: ${hop.from ? `${hop.from} to ${hop.to}` : hop.to}`),
          [hop.lane, hop.part].filter(Boolean).length > 0 && ` (${[hop.lane, hop.part].filter(Boolean).join(", ")})`, hop.why && `: ${hop.why}`,
          hop.silent && `; no report from ${hop.silent}`),
        hop?.steps?.length > 0 && h("ul", {}, hop.steps.map((step) => h("li", {}, step)))),
      timeline(transfer, bounded),
      partsTable(analysis.seconds, query),
      table("Hops", [
        { title: "node", cell: (row) => nodeLink(row.node) },
        { title: "rate of its own transfer", number: true, cell: (row) => (row.known ? rate(row.bytes_per_second) : undefined) },
        { title: "state", cell: (row) => (row.problem ? h("span", { class: "bad" }, row.problem) : row.under_way ? "running" : row.known ? "done" : "no transfer made it here, or it is not remembered") },
        { title: "replica", cell: (row) => h("code", { title: row.replica }, short(row.replica)) },
        { title: "note", cell: (row) => hop && row.node === hop.to && h("strong", { class: "warn" }, hop.from ? `bounding hop, from ${hop.from}` : "bounds it itself") || undefined },
      ], analysis.hops ?? [], { query, page: "hops", empty: "No other node was asked." }),
      h("p", { class: "muted" }, "In a terminal: ", h("code", {}, `tensorcast explain ${transfer.transfer_id}`)),
    ];
  },
};
