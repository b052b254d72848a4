// Numbers as people read them. The documents have 64-bit integers as text, durations as "1.5s" and times as RFC 3339.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const number = (value) => Number(value ?? 0);
export const count = (value) => number(value).toLocaleString("en-US");
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${number(value) === 1 ? one : many}`;

export function bytes(value) {
  let size = number(value);
  let unit = 0;
  while (size >= 1023.5 && unit < SIZES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 99.95 ? Math.round(size) : size.toFixed(size >= 9.995 ? 1 : 2)} ${SIZES[unit]}`;
}

export const rate = (bytesPerSecond) => `${bytes(bytesPerSecond)}/s`;
export const share = (part, whole) => (number(whole) > 0 ? number(part) / number(whole) : 0);
export const percent = (fraction) => `${(fraction * 100).toFixed(fraction < 0.0995 && fraction > 0 ? 1 : 0)} %`;

// Seconds of a protobuf duration ("1.5s").
export const seconds = (duration) => (duration ? parseFloat(duration) : 0);

export function duration(value) {
  if (value < 0.0005) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.0995 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  const whole = Math.round(value);
  const pad = (part) => String(part).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} m`;
  return `${Math.floor(whole / 86400)} d ${pad(Math.floor((whole % 86400) / 3600))} h`;
}

// Milliseconds since the epoch; 0 where the field is unset.
export const instant = (time) => (time ? Date.parse(time) : 0);
export const between = (from, to) => Math.max(0, instant(to) - instant(from)) / 1e3;

// Local time of day, with the date where it is another day.
export function clock(time) {
  if (!instant(time)) return "—";
  const when = new Date(instant(time));
  const day = when.toDateString() === new Date().toDateString() ? "" : `${when.toLocaleDateString("sv-SE")} `;
  return day + when.toLocaleTimeString("sv-SE");
}

// "REPLICA_STATE_READY" as "ready".
export const word = (value, prefix) => (value ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");

export function place(location) {
  const kind = word(location?.kind, "LOCATION_KIND_");
  return kind === "gpu" ? `gpu:${location.device ?? 0}` : kind || "—";
}

// The start of an artifact id ("tc2:abcd…") or a UUID, which commands accept, too.
export const short = (id) => (id ? id.slice(0, id.startsWith("tc") ? 14 : 8) : "—");
