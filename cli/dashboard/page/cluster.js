// Cluster: all nodes by zone and rack, and the nodes of one place.
import { h, link, svg, withQuery } from "./dom.js";
import { choice, facts, filter, table } from "./table.js";
import { bytes, count, duration, number, rate, seconds, share, word } from "./units.js";

const sum = (list, value) => list.reduce((total, entry) => total + number(value(entry)), 0);
const placeName = (value) => (value === "" ? "(no label)" : value);

// A share as a bar, with its text beside it.
export function bar(fraction, label) {
  return h("span", { class: "bar" },
    svg("svg", { viewBox: "0 0 60 8", role: "img", "aria-label": label },
      svg("rect", { width: 60, height: 8, class: "empty" }),
      svg("rect", { width: Math.min(1, fraction) * 60, height: 8, class: "filled" })),
    h("span", {}, label));
}

const poolOf = (pools, kind) => pools.find((pool) => pool.kind === kind);

function poolCell(pool) {
  if (!pool || !number(pool.capacity_bytes)) return undefined;
  return bar(share(pool.used_bytes, pool.capacity_bytes), `${bytes(pool.used_bytes)} of ${bytes(pool.capacity_bytes)}`);
}

const LATE_SECONDS = 30; // without a heartbeat, as the server counts the late ones
const HEALTH = ["draining", "unreachable", "unhealthy", "late"];

function healthCell(group) {
  const wrong = HEALTH.filter((name) => group[name] > 0).map((name) => `${count(group[name])} ${name}`);
  return wrong.length === 0 ? h("span", { class: "good" }, "all ok") : h("span", { class: "warn" }, wrong.join(", "));
}

// One row of a group of racks: their sums.
function merged(racks) {
  const kinds = [...new Set(racks.flatMap((rack) => rack.pools.map((pool) => pool.kind)))];
  const pools = kinds.map((kind) => {
    const those = racks.map((rack) => poolOf(rack.pools, kind)).filter(Boolean);
    return { kind, capacity_bytes: sum(those, (p) => p.capacity_bytes), used_bytes: sum(those, (p) => p.used_bytes) };
  });
  const protocol_versions = {};
  for (const rack of racks) {
    for (const [version, nodes] of Object.entries(rack.protocol_versions)) {
      protocol_versions[version] = (protocol_versions[version] ?? 0) + nodes;
    }
  }
  const total = { pools, protocol_versions };
  for (const name of ["nodes", "asked", ...HEALTH, "received_bytes_per_second", "served_bytes_per_second"]) {
    total[name] = sum(racks, (rack) => rack[name]);
  }
  return total;
}

function rateCell(group, name) {
  if (group.asked === 0) return h("span", { class: "muted" }, "not asked");
  return rate(group[name]) + (group.asked < group.nodes ? ` (${plural(group.asked, "node")})` : "");
}

// Most nodes have one version: more than one is what an operator looks for.
function versionsCell(versions) {
  const entries = Object.entries(versions);
  return entries.length === 1 ? entries[0][0]
    : h("span", { class: "warn" }, entries.map(([version, nodes]) => `${version}: ${count(nodes)}`).join(", "));
}

const groupColumns = (name, address) => [
  { title: name, cell: (row) => link(address(row), placeName(row.name)), sort: (row) => row.name },
  { title: "nodes", number: true, cell: (row) => count(row.nodes), sort: (row) => row.nodes },
  { title: "health", cell: healthCell, sort: (row) => sum(HEALTH, (state) => row[state]) },
  { title: "host memory", cell: (row) => poolCell(poolOf(row.pools, "cpu")), sort: (row) => number(poolOf(row.pools, "cpu")?.used_bytes) },
  { title: "GPU memory", cell: (row) => poolCell(poolOf(row.pools, "gpu")), sort: (row) => number(poolOf(row.pools, "gpu")?.used_bytes) },
  { title: "receiving", number: true, cell: (row) => rateCell(row, "received_bytes_per_second"), sort: (row) => row.received_bytes_per_second },
  { title: "serving", number: true, cell: (row) => rateCell(row, "served_bytes_per_second"), sort: (row) => row.served_bytes_per_second },
  { title: "protocol", number: true, cell: (row) => versionsCell(row.protocol_versions) },
];

function storeFacts(status, zones) {
  const store = status?.cluster;
  if (!store) return facts([["nodes", count(zones.nodes)]]);
  const leader = (store.stores ?? []).find((member) => member.leads);
  const quota = share(store.metadata_bytes, store.metadata_quota_bytes);
  return facts([
    ["nodes", count(zones.nodes)],
    ["artifacts", count(store.artifacts)],
    ["differences", number(store.differences) > 0 && `${count(store.differences)}, ${bytes(store.difference_bytes)}`],
    ["keys", count(store.keys)],
    ["replicas", count(store.replicas)],
    ["grants running", count(store.active_grants)],
    ["open tasks", link("/tasks", count(store.open_tasks))],
    ["metadata", store.metadata_store],
    ["epoch", String(store.store_epoch ?? "")],
    ["leader", leader && `${leader.address}, for ${duration(seconds(store.leads_for))}`],
    ["standing by", (store.stores ?? []).filter((member) => !member.leads).map((member) => member.address).join(", ")],
    ["etcd", number(store.metadata_quota_bytes) > 0 &&
      h("span", { class: quota > 0.8 ? "bad" : "" }, `${bytes(store.metadata_bytes)} of ${bytes(store.metadata_quota_bytes)}`,
        quota > 0.8 && "; almost full: compact and defragment etcd, or raise etcd's quota and global_store.etcd.quota")],
    ["dashboard", status.version],
  ]);
}

export const problemsOf = (problems) => (problems ?? []).length > 0 &&
  h("ul", { class: "problems", "aria-label": "Problems" },
    problems.map(({ subject, error }) => h("li", { class: "bad" }, `${subject}: ${error.code} ${error.message ?? ""}`)));

export const cluster = {
  view: "zones",
  parameters: [],
  under: "/",
  title: (query) => (query.has("zone") ? `Zone ${placeName(query.get("zone"))}` : "Cluster"),
  render(zones, query) {
    const chosen = query.has("zone") ? zones.zones.filter(({ zone }) => zone === query.get("zone")) : zones.zones;
    // A zone is a step of its own only where racks would be too many to look at.
    const racks = chosen.flatMap(({ zone, racks }) => racks.map((rack) => ({ ...rack, zone, name: rack.rack })));
    const byZone = !query.has("zone") && chosen.length > 1 && racks.length > 30;
    const rows = byZone ? chosen.map(({ zone, racks }) => ({ name: zone, ...merged(racks) })) : racks;
    const columns = byZone ? groupColumns("zone", (row) => withQuery({ zone: row.name }))
      : [{ title: "zone", cell: (row) => placeName(row.zone), sort: (row) => row.zone },
        ...groupColumns("rack", (row) => `/nodes?${new URLSearchParams({ zone: row.zone, rack: row.rack })}`)];
    return [
      problemsOf(zones.status?.problems ?? zones.problems),
      storeFacts(zones.status, zones),
      h("p", {}, query.has("zone") ? [link("/", "All zones"), " · ",
        link(`/nodes?${new URLSearchParams({ zone: query.get("zone") })}`, "All nodes of this zone")] : link("/nodes", "All nodes")),
      table(byZone ? "Zones" : "Racks", columns, rows,
        { query, page: "page", empty: "No node is registered. Start one: tensorcast daemon --set daemon.global_store=ADDRESS" }),
      zones.not_asked > 0 && h("p", { class: "muted" },
        `Rates are sums over the nodes that were asked; ${count(zones.not_asked)} were not. The transfers of a rack have the rates of its nodes.`),
    ];
  },
};

// What is wrong with a node, as the store knows it.
export function stateOf(node) {
  const wrong = [
    node.draining && "draining",
    node.unreachable && "unreachable",
    (node.unhealthy_devices ?? []).length > 0 && `gpu ${node.unhealthy_devices.join(", ")} unhealthy`,
    seconds(node.since_heartbeat) >= LATE_SECONDS && `late: ${duration(seconds(node.since_heartbeat))}`,
  ].filter(Boolean);
  return wrong.length === 0 ? h("span", { class: "good" }, "ok") : h("span", { class: "warn" }, wrong.join(", "));
}

const nodeLink = (name) => link(`/node?${new URLSearchParams({ node: name })}`, name);
const labelsOf = (node) => Object.entries(node.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(", ");

function memoryCell(node, kind) {
  const pools = (node.pools ?? []).filter((pool) => word(pool.location?.kind, "LOCATION_KIND_") === kind);
  return poolCell({ used_bytes: sum(pools, (p) => p.used_bytes), capacity_bytes: sum(pools, (p) => p.capacity_bytes) });
}

export const nodes = {
  view: "nodes",
  parameters: ["zone", "rack", "q", "state"],
  under: "/",
  title: (query) => ["Nodes", query.has("zone") && `zone ${placeName(query.get("zone"))}`,
    query.has("rack") && `rack ${placeName(query.get("rack"))}`].filter(Boolean).join(" · "),
  render(list, query) {
    const columns = [
      { title: "node", cell: (node) => nodeLink(node.name) },
      { title: "state", cell: stateOf },
      { title: "labels", cell: labelsOf },
      { title: "host memory", cell: (node) => memoryCell(node, "cpu") },
      { title: "GPU memory", cell: (node) => memoryCell(node, "gpu") },
      { title: "lanes", cell: (node) => (node.lanes ?? []).join(", ") || "local" },
      { title: "address", cell: (node) => node.grpc_address },
      { title: "protocol", number: true, cell: (node) => count(node.protocol_version) },
      { title: "id", cell: (node) => h("code", {}, node.node_id.slice(0, 8)) },
    ];
    const where = new URLSearchParams([...query].filter(([name]) => name === "zone" || name === "rack"));
    return [
      h("p", {}, link("/", "All zones and racks"), " · ", link(`/transfers?${where}`, "Transfers of these nodes")),
      h("form", { class: "filters", role: "search" },
        filter("q", "Name or id", query),
        choice("state", "State", [["", "any"], ["ok", "ok"], ...HEALTH.map((name) => [name, name])], query)),
      table("Nodes", columns, list.nodes ?? [],
        { query, next: list.next_page_token, total: list.total, empty: "No node matches; clear the filter." }),
    ];
  },
};

export { nodeLink };
