// Replication tasks: which artifact is to be where, and how far that is.
import { bar, nodeLink } from "./cluster.js";
import { h } from "./dom.js";
import { artifactLink } from "./keys.js";
import { choice, facts, filter, table } from "./table.js";
import { bytes, clock, count, number, place, share, short, word } from "./units.js";

const stateOf = (task) => word(task.state, "REPLICATION_TASK_STATE_");
const STATES = ["waiting", "running", "done", "failed"];
const CLASSES = { waiting: "warn", failed: "bad", done: "good" };

export const tasks = {
  view: "tasks",
  parameters: ["artifact", "state"],
  under: "/tasks",
  title: () => "Tasks",
  render(list, query) {
    const columns = [
      { title: "task", cell: (task) => h("code", { title: task.task_id }, short(task.task_id)) },
      { title: "state", cell: (task) => h("span", { class: CLASSES[stateOf(task)] }, stateOf(task)) },
      { title: "artifact", cell: (task) => artifactLink(task.artifact_id) },
      { title: "node", cell: (task) => nodeLink(task.node_name || task.node_id) },
      { title: "location", cell: (task) => place(task.location) },
      { title: "progress", cell: (task) => number(task.bytes_total) > 0 &&
        bar(share(task.bytes, task.bytes_total), `${bytes(task.bytes)} of ${bytes(task.bytes_total)}`) || undefined },
      { title: "waits for", cell: (task) => task.waiting_for || undefined },
      { title: "failed attempts", number: true, cell: (task) => count(task.failures) },
      { title: "last error", cell: (task) => task.error?.message && h("span", { class: "bad" }, task.error.message) },
      { title: "made", cell: (task) => clock(task.created) },
      { title: "ended", cell: (task) => clock(task.ended) },
      { title: "asked by", cell: (task) => task.asked_by || undefined },
    ];
    return [
      facts(STATES.map((state) => [state, count(list.states?.[state])])),
      h("form", { class: "filters", role: "search" }, filter("artifact", "Artifact id", query),
        choice("state", "State", [["", "any"], ...STATES.map((state) => [state, state])], query)),
      table("Tasks", columns, list.tasks ?? [], { query, next: list.next_page_token, total: list.total,
        empty: query.has("state") || query.has("artifact") ? "No task matches; clear the filter."
          : "No task. Make one: tensorcast replicate KEY --to NODE" }),
    ];
  },
};
