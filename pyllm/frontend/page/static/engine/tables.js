// Panels that are tables, whose rows are made once and refilled. Each hides while its source has no data.

import { element, write } from "../dom.js";
import { bytes, grouped, span } from "./figures.js";

const MAX_ROWS = 20;

// `columns` are titles, those of numbers with a leading "#"; `rowsOf` gives texts for them, or null for no table.
export class TablePanel {
  #rows = [];

  constructor(title, columns, rowsOf) {
    this.rowsOf = rowsOf;
    this.kinds = columns.map((column) => (column.startsWith("#") ? "number" : null));
    const heads = columns.map((column, index) =>
      element("th", { scope: "col", class: this.kinds[index] }, column.replace("#", ""))
    );
    this.body = element("tbody");
    this.count = element("span", { class: "when" });
    const table = element(
      "table",
      { "aria-label": title },
      element("thead", {}, element("tr", {}, ...heads)),
      this.body,
    );
    this.root = element(
      "section",
      { class: "panel whole", "aria-label": title, hidden: true },
      element("div", { class: "panel-title" }, element("h2", {}, title), this.count),
      element(
        "div",
        { class: "table-scroller", tabindex: "0", role: "region", "aria-label": `${title}, table` },
        table,
      ),
    );
  }

  update(data) {
    const rows = this.rowsOf(data);
    this.root.hidden = !rows?.length;
    if (this.root.hidden) return;
    const shown = rows.slice(0, MAX_ROWS);
    write(this.count, rows.length > MAX_ROWS ? `${MAX_ROWS} of ${rows.length}` : "");
    while (this.#rows.length < shown.length) this.#add();
    this.#rows.forEach((row, index) => {
      row.hidden = index >= shown.length;
      if (!row.hidden) shown[index].forEach((text, column) => write(row.children[column], text));
    });
  }

  #add() {
    const row = element("tr", {}, ...this.kinds.map((kind) => element("td", { class: kind })));
    this.#rows.push(row);
    this.body.append(row);
  }
}

export class RequestsPanel extends TablePanel {
  constructor() {
    const columns = ["Request", "Tenant", "State", "#Prompt", "#Cached", "#Output", "#Blocks", "#Preempted", "#Age"];
    super("Requests", columns, ({ snapshot: { requests } }) => requests?.data.map(requestRow));
  }
}

function requestRow(request) {
  return [
    request.name.slice(0, 16) || `${request.client}.${request.request}`,
    request.tenant || "–",
    stateOf(request),
    grouped(request.num_prompt_tokens),
    grouped(request.num_cached_tokens),
    grouped(request.num_output_tokens),
    grouped(request.num_blocks),
    grouped(request.num_preemptions),
    span(request.age),
  ];
}

// The state of most of its samples, or the reason why one of them is not computed.
function stateOf({ finish, ended_age: ended, samples }) {
  if (finish) return `${finish}, ${span(ended)} ago`;
  const waiting = samples.find(({ reason }) => reason);
  const { state, reason, hold } = waiting || samples[0] || { state: "waiting" };
  return [state, reason, hold].filter(Boolean).join(": ");
}

export class ProcessesPanel extends TablePanel {
  #before = new Map();
  #at = NaN;

  constructor() {
    const columns = ["Process", "#Id", "#Memory", "#CPU", "#Threads", "#Age"];
    super("Processes", columns, (data) => this.#processes(data));
  }

  #processes({ snapshot: { processes }, times, length }) {
    if (!processes) return null;
    const now = times[length - 1];
    const seconds = (now - this.#at) / 1000;
    const rows = processes.processes.map((process) => {
      const used = process.cpu_seconds - (this.#before.get(process.pid) ?? NaN);
      return [
        process.name,
        String(process.pid),
        memoryOf(process),
        Number.isFinite(used / seconds) ? `${Math.round((used / seconds) * 100)} %` : "–",
        grouped(process.num_threads),
        span(process.age),
      ];
    });
    this.#before = new Map(processes.processes.map(({ pid, cpu_seconds: used }) => [pid, used]));
    this.#at = now;
    return rows;
  }
}

function memoryOf({ memory_bytes: memory, device_bytes: onCards }) {
  return onCards === null ? bytes(memory) : `${bytes(memory)}, ${bytes(onCards)} on cards`;
}

export class CardsPanel extends TablePanel {
  constructor() {
    super(
      "Cards",
      ["Card", "#Memory", "#Of", "#Load"],
      ({ snapshot: { processes } }) =>
        processes?.devices.map((card) => [
          `${card.index}: ${card.name}`,
          bytes(card.used_bytes),
          bytes(card.total_bytes),
          `${Math.round(card.utilization * 100)} %`,
        ]),
    );
  }
}

export class TenantsPanel extends TablePanel {
  constructor() {
    super("Tenants", ["Tenant", "#Share of what was computed", "#Waiting"], ({ snapshot: { tenants } }) => {
      const total = tenants?.data.reduce((sum, [, service]) => sum + service, 0);
      return total > 0
        ? tenants.data.map(([name, service, waiting]) => [
          name || "(none)",
          `${((service / total) * 100).toFixed(1)} %`,
          grouped(waiting),
        ])
        : null;
    });
  }
}

export class CrashesPanel extends TablePanel {
  constructor() {
    super(
      "Last crashes",
      ["When", "What", "Record"],
      ({ snapshot: { crashes } }) =>
        crashes?.data.map(({ time, name, folder }) => [new Date(time).toLocaleString(), name, folder]),
    );
  }
}
