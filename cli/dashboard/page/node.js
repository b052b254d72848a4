// Node: what one node holds, which processes hold that, and what it did lately.
import { bar, nodeLink, stateOf } from "./cluster.js";
import { h, link } from "./dom.js";
import { artifactLink, keyLink, replicaState } from "./keys.js";
import { facts, table } from "./table.js";
import { recentColumns, runningColumns } from "./transfers.js";
import { bytes, clock, count, number, place, plural, rate, share, short } from "./units.js";

const poolColumns = [
  { title: "pool", cell: (pool) => place(pool.location) },
  { title: "used", cell: (pool) => bar(share(pool.used_bytes, pool.capacity_bytes), `${bytes(pool.used_bytes)} of ${bytes(pool.capacity_bytes)}`) },
  { title: "leased or pinned", number: true, cell: (pool) => bytes(pool.pinned_bytes) },
  { title: "can be evicted", number: true, cell: (pool) => bytes(Math.max(0, number(pool.used_bytes) - number(pool.pinned_bytes))) },
  { title: "partial replicas", number: true, cell: (pool) => (number(pool.partial_replicas) > 0 ? `${count(pool.partial_replicas)}: ${bytes(pool.partial_bytes)}` : "0") },
  { title: "free", number: true, cell: (pool) => bytes(Math.max(0, number(pool.capacity_bytes) - number(pool.used_bytes))) },
  { title: "high water", number: true, cell: (pool) => bytes(pool.high_water_bytes) },
  { title: "evictions", number: true, cell: (pool) => count(pool.evictions) },
  { title: "failed allocations", number: true, cell: (pool) => h("span", { class: number(pool.failed_allocations) > 0 ? "warn" : "" }, count(pool.failed_allocations)) },
];

// What holds a replica: other nodes by their open pulls; the other leases are those of processes of its host.
function holders(replica, pulls, names) {
  const mine = pulls.filter((pull) => pull.replica_id === replica.replica_id);
  const local = Math.max(0, number(replica.leases) - mine.length);
  const parts = mine.map((pull) => [names[pull.receiver_node_id] ? nodeLink(names[pull.receiver_node_id]) : short(pull.receiver_node_id), ` (${pull.lane})`]);
  if (local > 0) parts.push([plural(local, "local holder")]);
  if (replica.pinned) parts.push(["pinned"]);
  return parts.length === 0 ? undefined : parts.flatMap((part, index) => (index > 0 ? [", ", ...part] : part));
}

function problems(document) {
  const { status } = document;
  const rows = (document.problems ?? []).map(({ subject, error }) => ({ what: subject, why: `${error.code} ${error.message ?? ""}` }));
  const add = (what, why) => rows.push({ what, why });
  if (status?.global_store_error) add("global store", status.global_store_error);
  for (const device of status?.devices ?? []) if (device.unhealthy) add(`gpu:${device.ordinal ?? 0}`, device.unhealthy);
  for (const replica of status?.damaged_replicas ?? []) {
    add(`replica ${short(replica.replica_id)}`, `damaged in ${replica.memory}, found ${clock(replica.found)}; ` +
      (replica.replaced_by ? `replaced by ${short(replica.replaced_by)}` : "not replaced yet; check this node's memory"));
  }
  for (const file of status?.damaged_files ?? []) add(file.path, `${file.error?.message ?? "damaged"}; remove the file, or pack the artifact again`);
  for (const transfer of status?.recent_transfers ?? []) if (transfer.error?.message) add(`transfer ${short(transfer.transfer_id)}`, transfer.error.message);
  for (const serving of status?.servings ?? []) if (serving.error?.message) add(`pull ${short(serving.grant_id)}`, serving.error.message);
  return rows;
}

function nodeFacts(node, status, query) {
  const limit = (value) => (number(value) > 0 ? rate(value) : "unlimited");
  return facts([
    ["state", stateOf(node)],
    ["id", h("code", {}, node.node_id)],
    ["address", node.grpc_address],
    ["labels", Object.entries(node.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(", ")],
    ["lanes", (node.lanes ?? []).join(", ") || "local"],
    ["version", status?.host?.software_version],
    ["protocol", count(node.protocol_version)],
    ["broadcasts", node.nccl_version || node.no_nccl],
    ["global store", status && `${status.global_store}${status.global_store_reachable ? "" : " (not reachable)"}`],
    ["security", status && (status.security?.name ? `mutual TLS as ${status.security.name}, certificate valid until ${clock(status.security.certificate_ends)}`
      : status.security?.insecure ? h("span", { class: "warn" }, "none on its TCP ports (security.insecure)") : "no TCP port; only unix sockets")],
    ["limits", status && `send ${limit(status.limits?.send)}, receive ${limit(status.limits?.receive)}`],
    ["attachments", status && plural(status.handle_connections, "connection")],
    ["leases", status && count(status.leases)],
    ["transfers of its rack", link(`/transfers?${new URLSearchParams({ zone: node.labels?.zone ?? "", rack: node.labels?.rack ?? "" })}`, "show")],
    ["moved by lane", (status?.lanes ?? []).map((lane) => `${lane.lane}: received ${bytes(lane.bytes_received)}, served ${bytes(lane.bytes_served)}`).join("; ")],
  ]);
}

export const node = {
  view: "node",
  parameters: ["node"],
  under: "/",
  title: (query) => `Node ${query.get("node") ?? ""}`,
  render(document, query) {
    const { node, status, names = {}, keys = {} } = document;
    const pulls = (status?.servings ?? []).filter((serving) => !serving.closed);
    const replicas = [
      { title: "location", cell: (replica) => place(replica.location) },
      { title: "key", cell: (replica) => (keys[replica.artifact_id] ?? []).flatMap((name, index) => [index > 0 && ", ", keyLink(name)]) },
      { title: "artifact", cell: (replica) => artifactLink(replica.artifact_id) },
      { title: "state", cell: replicaState },
      { title: "size", number: true, cell: (replica) => bytes(replica.image_bytes) },
      { title: "leases", number: true, cell: (replica) => count(replica.leases) },
      { title: "held by", cell: (replica) => holders(replica, pulls, names) },
      { title: "last used", cell: (replica) => clock(replica.last_used) },
      { title: "replica", cell: (replica) => h("code", { title: replica.replica_id }, short(replica.replica_id)) },
    ];
    const serving = [
      { title: "to node", cell: (pull) => (names[pull.receiver_node_id] ? nodeLink(names[pull.receiver_node_id]) : short(pull.receiver_node_id)) },
      { title: "lane", cell: (pull) => pull.lane },
      { title: "artifact", cell: (pull) => artifactLink(pull.artifact_id) },
      { title: "state", cell: (pull) => (pull.closed ? `ended ${clock(pull.closed)}` : h("span", { class: "good" }, "open")) },
      { title: "served", number: true, cell: (pull) => bytes(pull.bytes) },
      { title: "requests", number: true, cell: (pull) => count(pull.requests) },
      { title: "opened", cell: (pull) => clock(pull.opened) },
      { title: "error", cell: (pull) => pull.error?.message && h("span", { class: "bad" }, pull.error.message) },
    ];
    const of = (list) => (list ?? []).map((transfer) => ({ node: node.name, transfer }));
    const wrong = problems(document);
    return [
      nodeFacts(node, status, query),
      wrong.length > 0 && table("Errors", [
        { title: "what", cell: (row) => row.what },
        { title: "why", cell: (row) => h("span", { class: "bad" }, row.why) },
      ], wrong, { query, page: "errors" }),
      table("Pools", poolColumns, status?.pools ?? node.pools ?? [], { query, page: "pools", empty: "The node reported no pool yet." }),
      table("Replicas", replicas, document.replicas ?? [], { query, next: document.next_page_token, total: document.total,
        empty: status ? "It holds nothing. Bring a model here: tensorcast get KEY" : "The node does not answer, so its replicas are not known here." }),
      table("Running transfers", runningColumns, of(status?.running_transfers), { query, page: "running", empty: "It receives nothing now." }),
      table("Pulls by other nodes", serving, status?.servings ?? [], { query, page: "pulls", empty: "No other node has read from it since its daemon started." }),
      table("Recent transfers", recentColumns, of(status?.recent_transfers), { query, page: "recent", empty: "It received nothing since its daemon started." }),
    ];
  },
};
