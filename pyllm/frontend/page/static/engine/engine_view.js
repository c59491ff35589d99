// The engine as it runs: figures, charts, what happened. A panel whose source has no data is not shown.

import { element, write } from "../dom.js";
import { Chart } from "./chart.js";
import { EngineData, POLL_EVERY, waitingReasons } from "./engine_data.js";
import { sumOf } from "./prometheus.js";

const CHARTS = [
  ["Tokens per second", [["generation", "generated"], ["prompt", "prompts"]], compact],
  ["Requests", [["running", "running"], ["waiting", "waiting"]], compact],
  ["Time to first token", [["firstToken50", "half within"], ["firstToken95", "95 % within"]], duration],
  ["Time between tokens", [["interToken50", "half within"], ["interToken95", "95 % within"]], duration],
  ["Time in the queue", [["queue50", "half within"], ["queue95", "95 % within"]], duration],
  ["Whole requests", [["whole50", "half within"], ["whole95", "95 % within"]], duration],
  ["KV cache", [["kvUsage", "in use"], ["hitRate", "prompt tokens found"]], share],
];

// Figures of one look: a title, the value, and a note or none.
const FIGURES = [
  ["Running", (data) => compact(data.latest("running")), () => "requests"],
  ["Waiting", (data) => compact(data.latest("waiting")), (data) => reasons(data.current.metrics)],
  ["Generated", (data) => compact(data.latest("generation")), () => "tokens/s"],
  ["First token", (data) => duration(data.latest("firstToken50")), (data) => `95 % within ${duration(data.latest("firstToken95"))}`],
  ["KV cache", (data) => share(data.latest("kvUsage")), (data) => blocks(data)],
  ["Prefix cache", (data) => share(data.latest("hitRate")), (data) => `${compact(cached(data.current.metrics))} blocks known`],
  ["Preemptions", (data) => compact(total(data, "vllm:num_preemptions_total")), () => "since the start"],
  ["Recoveries", (data) => compact(total(data, "pyllm:recoveries_total")), () => "since the start"],
];

export class EngineView {
  #timer = null;
  #isShown = false;

  constructor(data = new EngineData()) {
    this.data = data;
    this.status = element("p", { class: "engine-status", role: "status" });
    this.figures = FIGURES.map(() => {
      const parts = { value: element("span", { class: "figure-value" }, "–"), note: element("span", { class: "figure-note" }, " ") };
      return parts;
    });
    this.charts = CHARTS.map(([title, lines, format]) => new Chart(title, lines.map(([name, label]) => ({ name, label })), format));
    this.events = element("ol", { class: "events" });
    this.noEvents = element("p", { class: "note" }, "Nothing has happened while this page looked.");
    this.model = element("dl", { class: "facts" });
    this.root = element("div", { class: "engine" }, element("div", { class: "engine-head" }, element("h1", {}, "Engine"), this.status),
      this.body = element("div", { hidden: true },
        element("div", { class: "figures-row" }, ...FIGURES.map(([title], index) =>
          element("div", { class: "panel figure" }, element("h2", {}, title), this.figures[index].value, this.figures[index].note))),
        element("div", { class: "charts" }, ...this.charts.map((chart) => chart.root),
          element("section", { class: "panel", "aria-label": "What happened" }, element("div", { class: "panel-title" }, element("h2", {}, "What happened")), this.noEvents, this.events),
          element("section", { class: "panel", "aria-label": "What is served" }, element("div", { class: "panel-title" }, element("h2", {}, "What is served")), this.model))));
  }

  show() {
    if (this.#isShown) return;
    this.#isShown = true;
    this.#next();
  }

  hide() {
    this.#isShown = false;
    clearTimeout(this.#timer);
  }

  async #next() {
    if (!document.hidden) {
      await this.data.poll();
      this.draw();
    }
    if (this.#isShown) this.#timer = setTimeout(() => this.#next(), POLL_EVERY);
  }

  // Shows the data as it is now.
  draw() {
    const { data } = this;
    write(this.status, data.problem || data.state || "");
    this.status.classList.toggle("bad", Boolean(data.problem) || !["ready", ""].includes(data.state || ""));
    this.body.hidden = !data.current;
    if (!data.current) return;
    FIGURES.forEach(([, value, note], index) => {
      write(this.figures[index].value, value(data));
      write(this.figures[index].note, note(data) || " ");
    });
    for (const chart of this.charts) chart.update(data);
    this.#drawEvents();
    if (data.snapshot.server && !this.model.firstChild) this.#drawModel(data.snapshot.server);
  }

  #drawEvents() {
    const { events } = this.data;
    this.noEvents.hidden = events.length > 0;
    if (events[0] === this.newest) return;
    [this.newest] = events;
    while (this.events.children.length < events.length) this.events.append(element("li", {}, element("time", {}, ""), element("span", {}, "")));
    events.forEach(({ time, text, count }, index) => {
      const [when, what] = this.events.children[index].children;
      write(when, new Date(time).toLocaleTimeString());
      write(what, count > 1 ? `${text} (${count})` : text);
    });
  }

  #drawModel(server) {
    const facts = [["Model", server.served_model_name], ["Context", `${grouped(server.context_length)} tokens`], ["Numbers", server.dtype],
      ["Quantisation", server.quantization], ["KV cache", `${grouped(server.max_total_tokens)} tokens in blocks of ${server.page_size}, ${server.kv_cache_dtype}`],
      ["Tokens a step", grouped(server.max_prefill_tokens)], ["Sequences at once", grouped(server.max_running_requests)],
      ["Ranks", String(server.tp_size)], ["Version", server.version]];
    this.model.append(...facts.filter(([, value]) => value).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }
}

function total(data, name) {
  return sumOf(data.current.metrics, name) ?? NaN;
}

function cached(metrics) {
  return sumOf(metrics, "pyllm:num_cached_blocks") ?? NaN;
}

function blocks({ current, snapshot }) {
  const info = current.metrics.get("vllm:cache_config_info")?.[0].labels;
  const number = info && Number(info.num_gpu_blocks);
  return number ? `of ${grouped(number)} blocks` : snapshot.server ? `of ${grouped(snapshot.server.max_total_tokens)} tokens` : "";
}

function reasons(metrics) {
  const some = waitingReasons(metrics).filter(([, count]) => count > 0);
  return some.length ? some.map(([reason, count]) => `${reason} ${count}`).join(", ") : "requests";
}

function grouped(number) {
  return number.toLocaleString("en");
}

function compact(value) {
  if (Number.isNaN(value)) return "–";
  if (value >= 10_000) return `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k`;
  return value === Math.round(value) || value >= 100 ? String(Math.round(value)) : value.toFixed(value < 10 ? 1 : 0);
}

function duration(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  return value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(value < 10 ? 2 : 0)} s`;
}

function share(value) {
  return Number.isNaN(value) ? "–" : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}
