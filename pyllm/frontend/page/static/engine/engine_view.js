// The running engine: figures, charts, and a panel for each source of data.

import { element, write } from "../dom.js";
import { health, healthSignals, tellHealth } from "../health.js";
import { Chart } from "./chart.js";
import { EngineData, POLL_EVERY, waitingReasons } from "./engine_data.js";
import { compact, duration, grouped, share } from "./figures.js";
import { BlocksPanel, EventsPanel, ModelPanel } from "./panels.js";
import { sumOf } from "./prometheus.js";
import { CardsPanel, CrashesPanel, ProcessesPanel, RequestsPanel, TenantsPanel } from "./tables.js";
import { TiersPanel } from "./tiers.js";

const CHARTS = [
  ["Tokens per second", [["generation", "generated"], ["prompt", "prompts"]], compact, 4],
  ["Requests at once", [["running", "running"], ["waiting", "waiting"]], compact, 4],
  ["Time to first token", [["firstToken50", "half within"], ["firstToken95", "95 % within"]], duration, 1e-3],
  ["Time between tokens", [["interToken50", "half within"], ["interToken95", "95 % within"]], duration, 1e-3],
  ["Time in the queue", [["queue50", "half within"], ["queue95", "95 % within"]], duration, 1e-3],
  ["Whole requests", [["whole50", "half within"], ["whole95", "95 % within"]], duration, 1e-3],
  ["KV cache", [["kvUsage", "in use"], ["hitRate", "prompt tokens found"]], share, 1],
];

// Each has a `root`, which it hides while its source has no data, and `update` for the data.
const PANELS = [
  EventsPanel,
  BlocksPanel,
  TiersPanel,
  RequestsPanel,
  ProcessesPanel,
  CardsPanel,
  TenantsPanel,
  CrashesPanel,
  ModelPanel,
];

// Figures of one look: a title, the value, and a note or none.
const FIGURES = [
  ["Running", (data) => compact(data.latest("running")), () => "requests"],
  ["Waiting", (data) => compact(data.latest("waiting")), (data) => reasons(data.current.metrics)],
  ["Generated", (data) => compact(data.latest("generation")), () => "tokens/s"],
  [
    "First token",
    (data) => duration(data.latest("firstToken50")),
    (data) => known(data.latest("firstToken95"), (value) => `95 % within ${duration(value)}`),
  ],
  ["KV cache", (data) => share(data.latest("kvUsage")), (data) => blocks(data)],
  [
    "Prefix cache",
    (data) => share(data.latest("hitRate")),
    (data) => `${compact(cached(data.current.metrics))} blocks known`,
  ],
  ["Preemptions", (data) => compact(total(data, "vllm:num_preemptions_total")), () => "since the start"],
  ["Recoveries", (data) => compact(total(data, "pyllm:recoveries_total")), () => "since the start"],
];

export class EngineView {
  #timer = null;
  #isShown = false;
  #onHealth = () => this.#drawHealth();

  constructor(data = new EngineData()) {
    this.data = data;
    this.status = element("p", { class: "engine-status", role: "status" });
    this.figures = FIGURES.map(() => ({
      value: element("span", { class: "figure-value" }),
      note: element("span", { class: "figure-note" }),
    }));
    this.charts = CHARTS.map(([title, lines, ...scale]) =>
      new Chart(title, lines.map(([name, label]) => ({ name, label })), ...scale)
    );
    this.refusal = element("p", { class: "note", hidden: true });
    this.panels = PANELS.map((Panel) => new Panel());
    this.root = element(
      "div",
      { class: "engine" },
      element("div", { class: "engine-head" }, element("h1", {}, "Engine"), this.status),
      this.body = element(
        "div",
        { hidden: true },
        element(
          "div",
          { class: "figures-row" },
          ...FIGURES.map(([title], index) =>
            element(
              "div",
              { class: "panel figure" },
              element("h2", {}, title),
              this.figures[index].value,
              this.figures[index].note,
            )
          ),
        ),
        element(
          "div",
          { class: "charts" },
          ...this.charts.map((chart) => chart.root),
          ...this.panels.map((panel) => panel.root),
        ),
        this.refusal,
      ),
    );
  }

  show() {
    if (this.#isShown) return;
    this.#isShown = true;
    healthSignals.addEventListener("change", this.#onHealth);
    this.#next();
  }

  hide() {
    this.#isShown = false;
    healthSignals.removeEventListener("change", this.#onHealth);
    clearTimeout(this.#timer);
  }

  async #next() {
    if (!document.hidden) {
      await this.data.poll();
      tellHealth(this.data.snapshot.health);
      this.draw();
    }
    if (this.#isShown) this.#timer = setTimeout(() => this.#next(), POLL_EVERY);
  }

  // The server's condition, as in the header, with the reason.
  #drawHealth() {
    const { state, text, reason } = health();
    write(this.status, this.data.problem || (reason ? `${text}: ${reason}` : text));
    this.status.classList.toggle("bad", Boolean(this.data.problem) || !["ready", ""].includes(state));
  }

  // Shows the current data.
  draw() {
    const { data } = this;
    write(this.refusal, data.refusal && `Not all is shown. ${data.refusal}`);
    this.refusal.hidden = !data.refusal;
    this.#drawHealth();
    this.body.hidden = !data.current;
    if (!data.current) return;
    FIGURES.forEach(([, value, note], index) => {
      write(this.figures[index].value, value(data));
      write(this.figures[index].note, note(data) || " ");
    });
    for (const shown of [...this.charts, ...this.panels]) shown.update(data);
  }
}

function total(data, name) {
  return sumOf(data.current.metrics, name) ?? NaN;
}

function cached(metrics) {
  return sumOf(metrics, "pyllm:num_cached_blocks") ?? NaN;
}

function blocks({ current, snapshot }) {
  const caches = current.metrics.get("vllm:cache_config_info") || [];
  const number = caches.reduce((sum, { labels }) => sum + Number(labels.num_gpu_blocks), 0);
  return number
    ? `of ${grouped(number)} blocks`
    : snapshot.server
    ? `of ${grouped(snapshot.server.max_total_tokens)} tokens`
    : "";
}

function reasons(metrics) {
  const some = waitingReasons(metrics).filter(([, count]) => count > 0);
  return some.length ? some.map(([reason, count]) => `${reason} ${count}`).join(", ") : "requests";
}

function known(value, text) {
  return Number.isNaN(value) ? "" : text(value);
}
