// The swarm as a graph: which node feeds which, at what rate. Columns are hops from the first sources (or racks), rows are
// nodes, so nothing moves from one update to the next without a reason. Many nodes are drawn as their racks, or zones.
import { svg } from "./dom.js";
import { plural, rate } from "./units.js";

const DRAWN = 40; // boxes; beyond that racks are drawn, then zones
const BOX = { width: 170, height: 30 };
const GAP = { column: 160, row: 10, line: 13 };
const TOP = 24; // for the columns' titles
const LEFT = 90; // for edges within the first column

const clipped = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// Edges between what is drawn: { source, receiver, bytes_per_second, running, lanes }; and the kind of what is drawn.
function condensed(document) {
  const placed = new Map((document.nodes ?? []).map((node) => [node.name, node]));
  const levels = [
    ["node", (name) => name],
    ["rack", (name) => (placed.has(name) ? `${placed.get(name).zone || "no zone"} / ${placed.get(name).rack || "no rack"}` : "files and objects")],
    ["zone", (name) => (placed.has(name) ? placed.get(name).zone || "no zone" : "files and objects")],
  ];
  for (const [kind, groupOf] of levels) {
    const edges = new Map();
    const boxes = new Map();
    for (const edge of document.edges ?? []) {
      const source = groupOf(edge.source);
      const receiver = groupOf(edge.receiver);
      for (const [box, name] of [[source, edge.source], [receiver, edge.receiver]]) {
        if (!boxes.has(box)) boxes.set(box, { name: box, members: new Set(), place: placed.get(name), known: placed.has(name) });
        boxes.get(box).members.add(name);
      }
      const id = `${source}\n${receiver}`;
      const sum = edges.get(id) ?? { source, receiver, bytes_per_second: 0, transfers: 0, running: false, lanes: new Set() };
      sum.bytes_per_second += edge.bytes_per_second;
      sum.transfers += edge.transfers;
      sum.running ||= edge.running;
      sum.lanes.add(edge.lane);
      edges.set(id, sum);
    }
    if (boxes.size <= DRAWN || kind === "zone") return { kind, boxes, edges: [...edges.values()] };
  }
}

// The fewest hops from a box that receives nothing from another; where all receive, from the one that feeds most.
function depths(boxes, edges) {
  const between = edges.filter((edge) => edge.source !== edge.receiver);
  const receives = new Set(between.map((edge) => edge.receiver));
  const depth = new Map([...boxes.keys()].filter((name) => !receives.has(name)).map((name) => [name, 0]));
  const feeds = (name) => between.filter((edge) => edge.source === name).length;
  while (depth.size < boxes.size) {
    const reached = between.filter((edge) => depth.has(edge.source) && !depth.has(edge.receiver));
    for (const edge of reached) depth.set(edge.receiver, Math.min(depth.get(edge.receiver) ?? Infinity, depth.get(edge.source) + 1));
    if (reached.length > 0) continue;
    const rest = [...boxes.keys()].filter((name) => !depth.has(name));
    depth.set(rest.reduce((best, name) => (feeds(name) > feeds(best) ? name : best)), 0);
  }
  return depth;
}

function columnsOf(boxes, edges, byPlace) {
  const depth = byPlace ? null : depths(boxes, edges);
  const columns = new Map();
  const where = (box) => `${box.place?.zone ?? ""} / ${box.place?.rack ?? ""}`;
  for (const box of [...boxes.values()].sort((a, b) => where(a).localeCompare(where(b)) || a.name.localeCompare(b.name))) {
    const column = byPlace ? where(box) : depth.get(box.name);
    if (!columns.has(column)) columns.set(column, []);
    columns.get(column).push(box);
  }
  const title = (column) => (byPlace ? (column === " / " ? "elsewhere" : column) : column === 0 ? "first sources" : plural(column, "hop"));
  return [...columns].sort(([a], [b]) => (byPlace ? a.localeCompare(b) : a - b)).map(([column, list]) => [title(column), list]);
}

export function graph(document, byPlace) {
  const { kind, boxes, edges } = condensed(document);
  const columns = columnsOf(boxes, edges, byPlace && kind === "node");
  const incoming = new Map([...boxes.keys()].map((name) => [name, edges.filter((edge) => edge.receiver === name)]));
  let height = 0;
  columns.forEach(([, list], column) => {
    let y = TOP;
    for (const box of list) {
      const lines = incoming.get(box.name).length;
      const room = Math.max(BOX.height, lines * GAP.line);
      Object.assign(box, { x: LEFT + column * (BOX.width + GAP.column), y: y + (room - BOX.height) / 2 });
      y += room + GAP.row;
    }
    height = Math.max(height, y);
  });
  const width = LEFT + columns.length * (BOX.width + GAP.column);
  const top = Math.max(1, ...edges.map((edge) => edge.bytes_per_second));
  const label = `Swarm of ${plural(boxes.size, kind)}: ${edges.map((edge) =>
    `${edge.source} feeds ${edge.receiver} at ${rate(edge.bytes_per_second)}`).slice(0, 20).join("; ")}`;
  const drawn = edges.map((edge) => ({ edge, ...route(edge, boxes, incoming) }));
  return svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label },
    svg("marker", { id: "arrow", viewBox: "0 0 6 6", refX: 5, refY: 3, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse",
      orient: "auto" }, svg("path", { d: "M0 0 L6 3 L0 6z" })),
    columns.map(([title], column) => svg("text", { x: LEFT + column * (BOX.width + GAP.column), y: 14, class: "muted" }, clipped(title, 26))),
    drawn.map(({ edge, path }) => svg("path", { d: path, class: edge.running ? "edge" : "edge ended", "marker-end": "url(#arrow)",
      "stroke-width": (1 + 3 * (edge.bytes_per_second / top)).toFixed(1) }, svg("title", {},
      `${edge.source} to ${edge.receiver}: ${rate(edge.bytes_per_second)}, ${[...edge.lanes].join(", ")}, ${plural(edge.transfers, "transfer")}`))),
    [...boxes.values()].map((box) => boxOf(box, kind)),
    drawn.map(({ edge, to, back }) => rateText(rate(edge.bytes_per_second), to, back)));
}

// From a side of the source to a side of the receiver, its own place among those that end there. An edge within a column
// goes round its left, where the boxes do not hide it; one back to an earlier column ends at the right.
function route(edge, boxes, incoming) {
  const source = boxes.get(edge.source);
  const receiver = boxes.get(edge.receiver);
  const siblings = incoming.get(edge.receiver);
  const slot = siblings.indexOf(edge) - (siblings.length - 1) / 2;
  const onward = receiver.x > source.x;
  const back = receiver.x < source.x;
  const from = { x: onward ? source.x + BOX.width : source.x, y: source.y + BOX.height / 2 };
  const to = { x: back ? receiver.x + BOX.width : receiver.x, y: receiver.y + BOX.height / 2 + slot * GAP.line };
  const bend = onward || back ? Math.abs(to.x - from.x) / 2 : 30;
  const path = `M${from.x} ${from.y} C${from.x + (onward ? bend : -bend)} ${from.y} ${to.x + (back ? bend : -bend)} ${to.y} ${to.x} ${to.y}`;
  return { path, to, back };
}

// Beside the end of an edge, on a ground of its own, so that lines do not cross the digits.
function rateText(text, to, back) {
  const width = text.length * 6.7;
  const x = back ? to.x + 10 : to.x - 10 - width;
  return [svg("rect", { class: "ground", x: x - 2, y: to.y - 6, width: width + 4, height: 12 }),
    svg("text", { class: "rate", x, y: to.y + 4, textLength: width }, text)];
}

function boxOf(box, kind) {
  const members = kind === "node" ? "" : `, ${plural(box.members.size, "node")}`;
  const inside = [
    svg("title", {}, box.name + members),
    svg("rect", { x: box.x, y: box.y, width: BOX.width, height: BOX.height, rx: 3 }),
    svg("text", { x: box.x + 8, y: box.y + 19 }, clipped(box.name + members, 24)),
  ];
  if (!box.known) return svg("g", { class: "box" }, inside);
  const query = kind === "node" ? { node: box.name }
    : { zone: box.place?.zone ?? "", ...(kind === "rack" && { rack: box.place?.rack ?? "" }) };
  return svg("a", { class: "box", href: `${kind === "node" ? "/node" : "/transfers"}?${new URLSearchParams(query)}` }, inside);
}
