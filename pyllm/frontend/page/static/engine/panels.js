// Panels beside the charts. Each shows one part of the data, and hides while there is none.

import { element, svg, write } from "../dom.js";
import { grouped, share } from "./figures.js";

// Events while the page was open, the latest first.
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

const BAR_HEIGHT = 14;
const MAX_NAMED = 4; // tenants
const NUM_OWNERS = MAX_NAMED + 4;

// The owners of the KV blocks: a bar that is divided among them, and the contents of the prefix cache.
export class BlocksPanel {
  constructor() {
    this.parts = Array.from({ length: NUM_OWNERS }, (_, index) => ({
      bar: svg("rect", { class: `owner-${index}`, y: 0, height: BAR_HEIGHT }),
      name: element("span"),
      count: element("span", { class: "value" }),
    }));
    this.picture = svg(
      "svg",
      { class: "owners", viewBox: `0 0 100 ${BAR_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      ...this.parts.map(({ bar }) => bar),
    );
    this.keys = this.parts.map(({ name, count }, index) =>
      element("li", {}, element("i", { class: `owner-${index}`, "aria-hidden": "true" }), name, " ", count)
    );
    this.cache = element("p", { class: "note" });
    this.root = panel(
      "KV blocks by owner",
      "whole",
      this.picture,
      element("ul", { class: "keys" }, ...this.keys),
      this.cache,
    );
    this.root.hidden = true;
  }

  update({ snapshot: { blocks } }) {
    this.root.hidden = !blocks;
    if (!blocks) return;
    const owners = ownersOf(blocks);
    let from = 0;
    this.parts.forEach(({ bar, name, count }, index) => {
      const [owner, number] = owners[index];
      const width = (number / blocks.num_blocks) * 100;
      bar.setAttribute("x", from);
      bar.setAttribute("width", width);
      from += width;
      this.keys[index].hidden = !number;
      write(name, owner);
      write(count, grouped(number));
    });
    const host = blocks.num_host_blocks
      ? `, and ${grouped(blocks.cached_host)} of ${grouped(blocks.num_host_blocks)} on the host`
      : "";
    const found = blocks.prefix_queries
      ? ` Of all prompt tokens it had ${share(blocks.prefix_hits / blocks.prefix_queries)}.`
      : "";
    write(
      this.cache,
      `The prefix cache knows ${grouped(blocks.cached)} of ${grouped(blocks.num_blocks)} blocks${host}.${found}`,
    );
  }
}

// Parts in a fixed order: the largest tenants by name, the others together, then blocks without a tenant.
function ownersOf({ owners }) {
  const tenants = Object.entries(owners.tenants).sort((one, other) => other[1] - one[1]);
  const named = Array.from({ length: MAX_NAMED }, (_, index) => tenants[index] || ["", 0]);
  const rest = tenants.slice(MAX_NAMED).reduce((sum, [, number]) => sum + number, 0);
  return [
    ...named.map(([name, number]) => [name || "requests", number]),
    ["other tenants", rest],
    ["pinned", owners.pinned],
    ["in transit", owners.in_transit],
    ["free", owners.free],
  ];
}

// The model and the server's settings, which do not change.
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
      ["Ranks", String(server.tp_size * server.pp_size)],
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
