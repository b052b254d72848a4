// Artifacts and keys: what exists under which names, its versions, its replicas, and which node is behind.
import { nodeLink } from "./cluster.js";
import { h, link } from "./dom.js";
import { facts, filter, table } from "./table.js";
import { bytes, clock, count, number, place, plural, share, percent, short, word } from "./units.js";

export const keyLink = (name) => link(`/key?${new URLSearchParams({ name })}`, name);
export const artifactLink = (id, text = short(id)) =>
  link(`/artifact?${new URLSearchParams({ artifact: id })}`, h("code", { title: id }, text));
const keyLinks = (names) => (names ?? []).flatMap((name, index) => [index > 0 && ", ", keyLink(name)]);
const tabs = (current) => h("p", { class: "tabs" }, link("/keys", h("span", { class: current === "keys" ? "current" : "" }, "Keys")),
  " · ", link("/artifacts", h("span", { class: current === "artifacts" ? "current" : "" }, "Artifacts")),
  " · ", link("/artifacts?kind=difference", h("span", { class: current === "differences" ? "current" : "" }, "Differences")));

export const keys = {
  view: "keys",
  parameters: ["prefix"],
  under: "/keys",
  title: () => "Keys",
  render(list, query) {
    const columns = [
      { title: "key", cell: (key) => keyLink(key.name) },
      { title: "revision", number: true, cell: (key) => count(key.revision) },
      { title: "artifact", cell: (key) => artifactLink(key.artifact_id) },
      { title: "bound", cell: (key) => clock(key.updated) },
      { title: "earlier versions kept", number: true, cell: (key) => count((key.earlier ?? []).length) },
      { title: "versions to keep", number: true, cell: (key) => (key.keep ? count(key.keep) : undefined) },
      { title: "files", cell: (key) => key.files_id && artifactLink(key.files_id) },
    ];
    return [tabs("keys"), h("form", { class: "filters", role: "search" }, filter("prefix", "Keys that start with", query)),
      table("Keys", columns, list.keys ?? [], { query, next: list.next_page_token, total: list.total,
        empty: query.has("prefix") ? "No key starts so; clear the filter." : "No key is bound. Store a model: tensorcast put MODEL --key NAME" })];
  },
};

export const key = {
  view: "key",
  parameters: ["name"],
  under: "/keys",
  title: (query) => `Key ${query.get("name") ?? ""}`,
  render(document, query) {
    const { key } = document;
    const bound = new Map([[number(key.revision), key.updated], ...(key.earlier ?? []).map((v) => [number(v.revision), v.bound])]);
    const versions = [
      { title: "revision", number: true, cell: (version) => count(version.revision) },
      { title: "artifact", cell: (version) => artifactLink(version.artifact_id, version.artifact_id) },
      { title: "bound", cell: (version) => clock(bound.get(number(version.revision))) },
      { title: "newest on", number: true, cell: (version) => plural(version.nodes, "node") },
      { title: "of those registered", number: true, cell: (version) => percent(share(version.nodes, document.registered)) },
    ];
    const behind = [
      { title: "node", cell: (node) => nodeLink(node.name) },
      { title: "zone", cell: (node) => node.zone || undefined },
      { title: "rack", cell: (node) => node.rack || undefined },
      { title: "newest revision", number: true, cell: (node) => count(node.revision) },
      { title: "behind", number: true, cell: (node) => h("span", { class: node.behind > 0 ? "warn" : "good" },
        node.behind > 0 ? plural(node.behind, "revision") : "current") },
    ];
    const differences = [
      { title: "from revision", number: true, cell: (difference) => count(difference.base_revision) },
      { title: "to revision", number: true, cell: (difference) => count(difference.target_revision) },
      { title: "size", number: true, cell: (difference) => bytes(difference.image_bytes) },
      { title: "of the whole", number: true, cell: (difference) => percent(share(difference.image_bytes, difference.whole_bytes)) },
      { title: "difference", cell: (difference) => artifactLink(difference.artifact_id) },
    ];
    return [
      facts([["revision", count(key.revision)], ["artifact", artifactLink(key.artifact_id, key.artifact_id)],
        ["bound", clock(key.updated)], ["versions to keep", key.keep && count(key.keep)],
        ["files", key.files_id && artifactLink(key.files_id, key.files_id)],
        ["nodes with a kept version", `${count(document.total)} of ${count(document.registered)}`]]),
      table("Versions", versions, document.revisions ?? [], { query, page: "versions", empty: "The key keeps no version." }),
      table("Nodes, those furthest behind first", behind, document.nodes ?? [], { query, next: document.next_page_token,
        total: document.total, empty: `No node has a ready replica. Bring one: tensorcast replicate ${key.name} --to NODE` }),
      table("Differences that are kept", differences, document.differences ?? [], { query, page: "differences",
        empty: "Each version goes to nodes as a whole. Publish the next one with its difference: tensorcast put MODEL --key " + key.name + " --base auto" }),
    ];
  },
};

export const artifacts = {
  view: "artifacts",
  parameters: ["q", "kind"],
  under: "/keys",
  title: (query) => (query.get("kind") === "difference" ? "Differences" : "Artifacts"),
  render(list, query) {
    const differences = query.get("kind") === "difference";
    const columns = [
      { title: "artifact", cell: (artifact) => artifactLink(artifact.artifact_id) },
      { title: "keys", cell: (artifact) => (artifact.keys?.length ? keyLinks(artifact.keys)
        : artifact.kept_by?.length ? ["earlier version of ", keyLinks(artifact.kept_by)] : h("span", { class: "muted" }, "none")) },
      { title: "kind", cell: (artifact) => ["tensors", "files", "difference"][artifact.kind ?? 0] },
      { title: "size", number: true, cell: (artifact) => bytes(artifact.image_bytes) },
      { title: "tensors", number: true, cell: (artifact) => count(artifact.tensor_count) },
      { title: "ready replicas", number: true, cell: (artifact) => count(artifact.replica_count) },
      { title: "origins", number: true, cell: (artifact) => count((artifact.origins ?? []).length) },
      { title: "created", cell: (artifact) => clock(artifact.created) },
    ];
    const none = differences ? "No difference is stored. Store one: tensorcast put MODEL --key NAME --base auto"
      : "No artifact is stored. Store a model: tensorcast put MODEL --key NAME";
    return [tabs(differences ? "differences" : "artifacts"),
      h("form", { class: "filters", role: "search" }, filter("q", "Part of an id, a key or an origin", query)),
      table(differences ? "Differences" : "Artifacts", columns, list.artifacts ?? [], { query, next: list.next_page_token, total: list.total,
        empty: query.has("q") ? "No artifact matches; clear the filter." : none })];
  },
};

export const replicaState = (replica) => {
  const state = word(replica.state, "REPLICA_STATE_");
  const part = replica.chunks_present < replica.chunks_total || state !== "ready"
    ? ` ${percent(share(replica.chunks_present, replica.chunks_total))}` : "";
  return h("span", { class: state === "ready" ? "good" : state === "failed" ? "bad" : "warn" }, state + part);
};

function originText(origin, names) {
  const objects = origin.objects ?? [];
  const first = objects[0]?.uri ?? "";
  return [first, objects.length > 1 && ` and ${count(objects.length - 1)} more`,
    first.startsWith("/") && [" on ", names[origin.node_id] ? nodeLink(names[origin.node_id]) : short(origin.node_id)]];
}

export const artifact = {
  view: "artifact",
  parameters: ["artifact"],
  under: "/keys",
  title: (query) => `Artifact ${query.get("artifact") ?? ""}`,
  render(document, query) {
    const { artifact, names = {} } = document;
    const replicas = [
      { title: "node", cell: (replica) => (names[replica.node_id] ? nodeLink(names[replica.node_id]) : short(replica.node_id)) },
      { title: "location", cell: (replica) => place(replica.location) },
      { title: "state", cell: replicaState },
      { title: "size", number: true, cell: (replica) => bytes(replica.image_bytes) },
      { title: "pinned", cell: (replica) => (replica.pinned ? "yes" : "no") },
      { title: "replica", cell: (replica) => h("code", { title: replica.replica_id }, short(replica.replica_id)) },
    ];
    const origins = [
      { title: "origin", cell: (origin) => originText(origin, names) },
      { title: "size", number: true, cell: (origin) => bytes((origin.objects ?? []).reduce((total, o) => total + number(o.bytes), 0)) },
      { title: "compared", cell: (origin) => (origin.compared ? "yes" : "no") },
      { title: "writes leave a trace", cell: (origin) => (origin.untraceable ? "no: it never counts as a copy" : "yes") },
    ];
    return [
      facts([["id", h("code", {}, artifact.artifact_id)], ["size", bytes(artifact.image_bytes)],
        ["tensors", count(artifact.tensor_count)], ["chunk size", bytes(artifact.chunk_bytes)], ["created", clock(artifact.created)],
        ["keys", artifact.keys?.length && keyLinks(artifact.keys)],
        ["earlier version of", artifact.kept_by?.length && keyLinks(artifact.kept_by)],
        ["released", artifact.released && "no key names or keeps it: it goes when room is needed, or with tensorcast gc"]]),
      table("Replicas", replicas, artifact.replicas ?? [], { query, next: document.next_page_token, total: document.total,
        empty: "No node has it. Bring it: tensorcast get ARTIFACT, or tensorcast replicate ARTIFACT --to NODE" }),
      table("Origins", origins, artifact.origins ?? [],
        { query, page: "origins", empty: "It was not imported from a file or an object: replicas are its only copies." }),
    ];
  },
};
