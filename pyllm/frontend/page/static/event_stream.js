// Reads server-sent events by fetch, and goes on after the last event where a connection breaks.

import { ask, ServerError } from "./server.js";

// Tries before any event came, and after one. The first waits are short: the server replaces a process in seconds.
const TRIES_TO_BEGIN = 2;
const TRIES_TO_GO_ON = 30;
const LONGEST_WAIT = 4000; // ms
// Statuses of a server that will recover.
const PASSING = new Set([502, 503, 504]);

// Splits a stream of characters into events, however its pieces are cut.
export class EventParser {
  #rest = "";
  #id = "";
  #data = [];
  #idOfEvent = null;

  // The events that are now complete: objects with `id`, empty if none has come, and `data`.
  feed(text) {
    const events = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) this.#take(line, events);
    return events;
  }

  #take(line, events) {
    if (line === "") {
      if (this.#idOfEvent !== null) this.#id = this.#idOfEvent;
      if (this.#data.length) events.push({ id: this.#id, data: this.#data.join("\n") });
      this.#data = [];
      this.#idOfEvent = null;
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.#data.push(value);
    else if (field === "id") this.#idOfEvent = value;
  }
}

// The events of a request's answer, up to its end. `lastId` is that of the last event of an earlier try, if there was
// one. `onBreak` is called with the reason each time the connection breaks, `onReturn` when events come again.
export async function* resumedEvents(path, body, { signal, lastId = "", onBreak = () => {}, onReturn = () => {} }) {
  for (let tries = 0;; tries += 1) {
    let reason;
    try {
      const headers = { Accept: "text/event-stream", "Last-Event-ID": lastId };
      const response = await ask(path, { method: "POST", body, signal, headers });
      for await (const event of eventsOf(response.body)) {
        if (tries) onReturn();
        tries = 0;
        if (event.data === "[DONE]") return;
        lastId = event.id || lastId;
        yield event;
      }
      reason = new Error("The connection ended before the answer did.");
    } catch (error) {
      if (signal.aborted || (error instanceof ServerError && !(lastId && PASSING.has(error.status)))) throw error;
      reason = error;
    }
    if (tries >= (lastId ? TRIES_TO_GO_ON : TRIES_TO_BEGIN)) throw reason;
    onBreak(reason);
    await wait(Math.min(LONGEST_WAIT, 250 * 2 ** tries), signal);
  }
}

async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) yield* parser.feed(part.value);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function wait(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}
