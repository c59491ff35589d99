// One answer while it comes: the stream's events go into a message, the message's figures are measured. Knows no view.

import { resumedEvents } from "../event_stream.js";
import { ServerError } from "../server.js";
import { CHAT_PATH } from "./request.js";

// Runs until the answer has ended, and keeps all of it in `message`. `onChange` is called after each event.
// A message that has an `eventId` continues after that event.
export class Answer {
  #stop = new AbortController();

  constructor(message, onChange) {
    this.message = message;
    this.isPaused = false;
    this.onChange = onChange;
  }

  async run() {
    const { message } = this;
    const started = performance.now();
    const tokensBefore = message.usage?.completion_tokens || 0;
    message.state = "running";
    message.error = null;
    let first = 0;
    try {
      const options = {
        signal: this.#stop.signal,
        lastId: message.eventId || "",
        onBreak: (reason) => this.#pause(reason),
        onReturn: () => this.#return(),
      };
      for await (const event of resumedEvents(CHAT_PATH, message.request, options)) {
        const hasText = this.#take(JSON.parse(event.data));
        message.eventId = event.id;
        const now = performance.now();
        if (hasText && !first) {
          first = now;
          if (!tokensBefore) message.firstTokenSeconds = (now - started) / 1000;
        }
        const tokens = (message.usage?.completion_tokens || 0) - tokensBefore;
        if (hasText && tokens > 1 && now > first) message.tokensPerSecond = (tokens - 1) / ((now - first) / 1000);
        this.onChange();
      }
      message.state = "done";
    } catch (error) {
      message.state = this.#stop.signal.aborted ? "stopped" : "failed";
      if (message.state === "failed") message.error = error.message || String(error);
    }
    this.isPaused = false;
    this.onChange();
  }

  stop() {
    this.#stop.abort();
  }

  #pause(reason) {
    this.isPaused = true;
    this.reason = reason.message;
    this.onChange();
  }

  // Counted now and not at the break: it may be tried many times, or never go on.
  #return() {
    this.isPaused = false;
    this.message.breaks = (this.message.breaks || 0) + 1;
    this.onChange();
  }

  // Whether the event had visible content.
  #take(chunk) {
    const { message } = this;
    if (chunk.error) throw new ServerError(chunk.error.message, 0, chunk.error);
    if (chunk.usage) message.usage = chunk.usage;
    const [choice] = chunk.choices || [];
    if (!choice) return false;
    const { delta } = choice;
    if (delta.content) message.content += delta.content;
    if (delta.reasoning) message.reasoning = (message.reasoning || "") + delta.reasoning;
    for (const call of delta.tool_calls || []) addCall(message.toolCalls ||= [], call);
    for (const entry of choice.logprobs?.content || []) {
      (message.tokens ||= []).push({
        text: entry.token,
        logprob: entry.logprob,
        top: entry.top_logprobs.map((each) => [each.token, each.logprob]),
      });
    }
    if (choice.finish_reason) message.finish = choice.finish_reason;
    return Boolean(delta.content || delta.reasoning || delta.tool_calls?.length);
  }
}

function addCall(calls, { index, id, function: called = {} }) {
  const call = (calls[index] ||= { id: "", name: "", arguments: "" });
  if (id) call.id = id;
  if (called.name) call.name += called.name;
  if (called.arguments) call.arguments += called.arguments;
}
