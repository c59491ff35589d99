// Panels beside the charts. Each shows one part of the data, and hides while there is none.

import { element, write } from "../dom.js";

// What happened while the page looked, the latest first.
export class EventsPanel {
  #newest;

  constructor() {
    this.list = element("ol", { class: "events" });
    this.none = element("p", { class: "note" }, "Recoveries, refusals and changes of health appear here.");
    this.root = panel("What happened", "wide", this.none, this.list);
  }

  update({ events }) {
    this.none.hidden = events.length > 0;
    if (events[0] === this.#newest) return;
    [this.#newest] = events;
    while (this.list.children.length < events.length) {
      this.list.append(element("li", {}, element("time"), element("span")));
    }
    events.forEach(({ time, text, count }, index) => {
      const [when, what] = this.list.children[index].children;
      write(when, new Date(time).toLocaleTimeString());
      write(what, count > 1 ? `${text} (${count})` : text);
    });
  }
}

// What is served, which does not change.
export class ModelPanel {
  constructor() {
    this.list = element("dl", { class: "facts" });
    this.root = panel("What is served", "whole", this.list);
    this.root.hidden = true;
  }

  update({ snapshot: { server } }) {
    if (!server || this.list.firstChild) return;
    this.root.hidden = false;
    const facts = [
      ["Model", server.served_model_name],
      ["Context", `${grouped(server.context_length)} tokens`],
      ["KV cache", `${grouped(server.max_total_tokens)} tokens in blocks of ${server.page_size}`],
      ["Weights", [server.quantization, server.dtype].filter(Boolean).join(", ")],
      ["Keys and values", server.kv_cache_dtype],
      ["Tokens a step", grouped(server.max_prefill_tokens)],
      ["Sequences at once", grouped(server.max_running_requests)],
      ["Ranks", String(server.tp_size)],
      ["pyllm", server.version],
    ];
    this.list.append(
      ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    );
  }
}

function panel(title, width, ...children) {
  return element(
    "section",
    { class: `panel ${width}`, "aria-label": title },
    element("div", { class: "panel-title" }, element("h2", {}, title)),
    ...children,
  );
}

function grouped(number) {
  return number.toLocaleString("en");
}
