// The documents of the server, and the stream of their changes.
//
// A stream is read with fetch rather than EventSource: that shows the HTTP status (401: log in again), the keep-alive comments
// (a silent stream is a dead one) and leaves the time to the next try to us.

const SILENT_MS = 40_000; // the server writes at least every 15 s
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 30_000;

// The server answers an address without a cookie with its login page, which comes back here.
export const logIn = () => location.reload();

// Applies an RFC 6902 patch of "add", "replace" and "remove"; returns the document.
export function patched(root, operations) {
  const holder = { "": root };
  for (const { op, path, value } of operations) {
    const keys = ["", ...path.split("/").slice(1).map((key) => key.replaceAll("~1", "/").replaceAll("~0", "~"))];
    const last = keys.pop();
    const parent = keys.reduce((at, key) => at[key], holder);
    if (Array.isArray(parent)) {
      const index = last === "-" ? parent.length : Number(last);
      if (op === "remove") parent.splice(index, 1);
      else parent.splice(index, op === "replace" ? 1 : 0, value);
    } else if (op === "remove") delete parent[last];
    else parent[last] = value;
  }
  return holder[""];
}

// The events of a text/event-stream as [name, data]; a comment is ["", ""].
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      yield [name, data.join("\n")];
    }
  }
}

// Follows one document until stop(). Calls onDocument(document) at first and after each change, and
// onState({ live, since, problem }) when what the page shows becomes current or stale. A hidden tab holds no connection.
export class Stream {
  #address;
  #onDocument;
  #onState;
  #document;
  #live = false;
  #since = null; // until then the document was known to be current
  #retry = FIRST_RETRY_MS;
  #timer;
  #abort;
  #visibility = () => this.#connect();

  constructor(address, onDocument, onState) {
    this.#address = address;
    this.#onDocument = onDocument;
    this.#onState = onState;
    document.addEventListener("visibilitychange", this.#visibility);
    this.#connect();
  }

  stop() {
    document.removeEventListener("visibilitychange", this.#visibility);
    clearTimeout(this.#timer);
    const abort = this.#abort;
    this.#abort = null; // so that the end of the stream is not taken for a loss
    abort?.abort();
  }

  async #connect() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    if (document.hidden) return;
    const abort = (this.#abort = new AbortController());
    let problem = "the dashboard's server ended the stream";
    try {
      this.#expectWord(abort);
      const response = await fetch(this.#address, { signal: abort.signal }).catch((error) => {
        throw error.name === "TypeError" ? new Error("the dashboard's server does not answer") : error;
      });
      if (response.status === 401) return this.#onState({ live: false, login: true });
      if (!response.ok) throw new Error((await response.json()).error?.message ?? `HTTP ${response.status}`);
      for await (const [name, data] of events(response.body)) {
        this.#expectWord(abort);
        this.#take(name, data);
      }
    } catch (error) {
      problem = error.message;
    }
    if (abort !== this.#abort || document.hidden) return; // a later stream took over
    this.#tryLater(problem);
  }

  #expectWord(abort) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => abort.abort(new Error("the stream is silent")), SILENT_MS);
  }

  #tryLater(problem) {
    clearTimeout(this.#timer);
    this.#tell(false, problem);
    // With jitter: the tabs of a server that comes back do not ask all at once.
    this.#timer = setTimeout(() => this.#connect(), this.#retry * (0.5 + Math.random() / 2));
    this.#retry = Math.min(this.#retry * 2, LAST_RETRY_MS);
  }

  #take(name, data) {
    if (name === "problem") return this.#tell(false, JSON.parse(data).error.message);
    if (name === "document") this.#document = JSON.parse(data);
    else if (name === "patch") this.#document = patched(this.#document, JSON.parse(data));
    if (name !== "") {
      this.#live = true;
      this.#retry = FIRST_RETRY_MS;
      this.#onDocument(this.#document);
    }
    if (this.#live) this.#tell(true);
  }

  #tell(live, problem) {
    this.#live = live;
    if (live) this.#since = new Date();
    this.#onState({ live, since: this.#since, problem });
  }
}
