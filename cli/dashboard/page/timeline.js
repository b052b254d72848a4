// One transfer over time: its wait, each source from when it came to when it went, and the stages of what came from it.
// Rows of a table with bars in one column, so that a screen reader reads the same numbers.
import { h, svg } from "./dom.js";
import { between, bytes, clock, duration, instant, number, percent, rate, seconds, share } from "./units.js";

const WIDTH = 1000; // of the bars, in units of the drawing
const TICKS = 4;

// Rows: { name, from, to, className, bytes, busy, note, level }.
function rowsOf(transfer, bounded) {
  const end = transfer.end;
  const start = instant(transfer.start) ? transfer.start : end;
  const rows = [{ name: "waits for its turn", from: transfer.queued, to: start, className: "wait" }];
  const stages = [...(transfer.stages ?? [])];
  const take = (source) => {
    const mine = stages.filter((stage) => stage.source === source.source && (stage.grant_id ?? "") === (source.grant_id ?? ""));
    for (const stage of mine) stages.splice(stages.indexOf(stage), 1);
    return mine;
  };
  for (const source of transfer.sources ?? []) {
    const bound = bounded.source === source.source;
    rows.push({ name: `${source.source} (${source.lane || source.source_type})`, from: source.joined, to: source.left ?? end,
      className: bound ? "source bound" : "source", bytes: source.bytes, busy: source.asked, note: noteOf(source, bound), level: 0 });
    for (const stage of take(source)) rows.push(stageRow(stage, bound && stage.stage === bounded.part));
  }
  for (const stage of stages) rows.push(stageRow(stage, stage.stage === bounded.part, ` from ${stage.source}`));
  return rows;
}

const stageRow = (stage, bound, suffix = "") => ({ name: stage.stage + suffix, from: stage.start, to: stage.end,
  className: `stage${bound ? " bound" : ""}`, bytes: stage.bytes, busy: stage.busy, level: 1,
  note: stage.error?.message && h("span", { class: "bad" }, stage.error.message) });

function noteOf(source, bound) {
  const notes = [
    bound && h("strong", { class: "warn" }, "bounding hop"),
    source.filling && "was filling itself",
    source.reassigned_chunks && `${source.reassigned_chunks} chunks taken back: too slow`,
    source.error?.message && h("span", { class: "bad" }, `dropped: ${source.error.message}`),
  ].filter(Boolean);
  return notes.flatMap((note, index) => (index > 0 ? ["; ", note] : [note]));
}

export function timeline(transfer, bounded) {
  const first = instant(transfer.queued);
  const total = Math.max(1, instant(transfer.end) - first); // ms
  const at = (time) => Math.min(WIDTH, Math.max(0, ((instant(time) - first) / total) * WIDTH));
  const ticks = Array.from({ length: TICKS + 1 }, (_, tick) => (tick === 0 ? "0" : duration((total * tick) / TICKS / 1e3)));
  const heads = ["part", null, "took", "bytes", "rate", "busy", "note"];
  return h("section", {},
    h("h2", {}, "Timeline", h("span", { class: "muted" }, ` from ${clock(transfer.queued)}, ${duration(total / 1e3)}`)),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Timeline" },
      h("table", { class: "timeline", "aria-label": "Timeline" },
        h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: /took|bytes|rate|busy/.test(head) && "number" },
          head ?? h("span", { class: "ticks" }, ticks.map((tick) => h("span", {}, tick))))))),
        h("tbody", {}, rowsOf(transfer, bounded).map((row) => {
          const took = between(row.from, row.to);
          return h("tr", {},
            h("th", { scope: "row", class: row.level === 1 && "stage" }, row.name),
            h("td", { class: "bars" }, svg("svg", { viewBox: `0 0 ${WIDTH} 12`, preserveAspectRatio: "none", role: "img",
              "aria-label": `from ${duration(between(transfer.queued, row.from))} to ${duration(between(transfer.queued, row.to))}` },
              svg("rect", { class: row.className, x: at(row.from), y: row.level === 1 ? 3 : 0, height: row.level === 1 ? 6 : 12,
                width: Math.max(2, at(row.to) - at(row.from)) }))),
            h("td", { class: "number" }, duration(took)),
            h("td", { class: "number" }, row.bytes ? bytes(row.bytes) : "—"),
            h("td", { class: "number" }, row.bytes && took > 0 ? rate(number(row.bytes) / took) : "—"),
            h("td", { class: "number" }, row.busy && took > 0 ? percent(share(seconds(row.busy), took)) : "—"),
            h("td", {}, row.note?.length || row.note?.nodeType ? row.note : "—"));
        })))));
}
