// The data of the Engine view, requested from the server every few seconds and kept for a while. Knows no node.
//
// A source is a route with a reader. A source that answers 401, 403 or 404 is left out from then on, with its part of
// the view, so a route that a server or a key may lack costs one request.

import { ask, ServerError } from "../server.js";
import { buckets, byLabel, parseMetrics, quantile, sumOf } from "./prometheus.js";

export const POLL_EVERY = 2000; // ms
// Looks that are kept: half an hour of them.
export const NUM_KEPT = 900;
// Looks over which percentiles are taken: half a minute.
const WINDOW = 15;
const MAX_EVENTS = 40;

// `name` is the key in a snapshot; `once` is for constant data, `every` for data requested in one of so many looks.
// `read` makes the value of a response.
export const SOURCES = [
  { name: "metrics", path: "/metrics", read: async (response) => parseMetrics(await response.text()) },
  { name: "history", path: "/metrics/history", once: true, read: (response) => response.json() },
  { name: "health", path: "/health/ready", takesErrors: true, read: (response) => response.json() },
  { name: "server", path: "/server_info", once: true, read: (response) => response.json() },
  { name: "requests", path: "/admin/requests?limit=20", read: (response) => response.json() },
  { name: "blocks", path: "/admin/blocks", read: (response) => response.json() },
  { name: "processes", path: "/admin/processes", read: (response) => response.json() },
  { name: "tenants", path: "/admin/tenants", read: (response) => response.json() },
  { name: "crashes", path: "/admin/crashes", every: 15, read: (response) => response.json() },
];

const HISTOGRAMS = {
  firstToken: "vllm:time_to_first_token_seconds",
  interToken: "vllm:inter_token_latency_seconds",
  queue: "vllm:request_queue_time_seconds",
  whole: "vllm:e2e_request_latency_seconds",
};

// Figures over time; NaN where a look had none.
export const SERIES = [
  "generation",
  "prompt",
  "running",
  "waiting",
  "kvUsage",
  "hitRate",
  ...Object.keys(HISTOGRAMS).flatMap((name) => [`${name}50`, `${name}95`]),
];

// Counters whose growth is an event that a reader should see.
const EVENTS = [
  ["pyllm:recoveries_total", "Workers were lost and started anew"],
  ["pyllm:core_connections_total", "An API process met a new engine core"],
  ["pyllm:resubmitted_requests_total", "Requests were sent to a core again"],
  ["pyllm:quarantine_failures_total", "Requests failed because they ended workers"],
  ["pyllm:degradations_total", "Memory was short, and something was given up"],
  ["vllm:admission_rejections_total", "Requests found the queue full"],
];

export class EngineData {
  #missing = new Set();
  #once = {};
  #looks = [];
  #number = 0;
  #pids = new Map();

  // `fetcher` asks a route as `ask` does; `clock` gives milliseconds.
  constructor(fetcher = ask, clock = Date.now) {
    this.fetcher = fetcher;
    this.clock = clock;
    this.times = new Float64Array(NUM_KEPT).fill(NaN);
    this.series = Object.fromEntries(SERIES.map((name) => [name, new Float64Array(NUM_KEPT).fill(NaN)]));
    this.length = 0;
    this.events = [];
    this.snapshot = {};
    this.problem = "";
    this.refusal = "";
  }

  // Requests every source once, and adds the answers.
  async poll() {
    const found = await Promise.all(SOURCES.map((source) => this.#ask(source)));
    this.#number += 1;
    this.snapshot = Object.fromEntries(SOURCES.map(({ name }, index) => [name, found[index]]));
    this.#noteReplaced(this.snapshot.processes);
    if (!this.length && this.snapshot.history) this.#recall(this.snapshot.history);
    this.take(this.snapshot.metrics, this.snapshot.health);
  }

  // Adds one look. `current` is the latest one, and percentiles and rates are counted from `oldest`.
  take(metrics, health) {
    const time = this.clock();
    this.#noteHealth(health, time);
    if (metrics) this.#look(time, metrics);
  }

  // The latest value of a series, NaN if it has none.
  latest(name) {
    return this.length ? this.series[name][this.length - 1] : NaN;
  }

  // Adds the looks that the server has kept, except one just now: it would leave no time for a rate until the next.
  #recall({ ages, series }) {
    const now = this.clock();
    ages.forEach((age, index) => {
      if (1000 * age < POLL_EVERY / 2) return;
      const known = Object.entries(series).filter(([, values]) => values[index] !== null);
      const lines = known.map(([name, values]) => `${name} ${values[index]}`);
      this.#look(now - 1000 * age, parseMetrics(lines.join("\n")));
    });
  }

  #look(time, metrics) {
    const before = this.#looks.at(-1);
    const look = { time, metrics, histograms: {} };
    for (const [name, metric] of Object.entries(HISTOGRAMS)) look.histograms[name] = buckets(metrics, metric);
    // A restarted process counts from 0, so earlier values are no basis for a rate.
    const isSame = before &&
      sumOf(metrics, "vllm:prompt_tokens_total") >= sumOf(before.metrics, "vllm:prompt_tokens_total");
    if (!isSame) this.#looks = [];
    else this.#noteEvents(before, look);
    this.#looks.push(look);
    if (this.#looks.length > WINDOW) this.#looks.shift();
    this.#append(time, this.#figures(isSame ? before : null, look));
    this.current = look;
    this.oldest = this.#looks[0];
  }

  #figures(before, look) {
    const { metrics } = look;
    const seconds = before ? (look.time - before.time) / 1000 : NaN;
    const rate = (name) => (before ? (sumOf(metrics, name) - sumOf(before.metrics, name)) / seconds : NaN);
    const oldest = this.#looks[0];
    const figures = {
      generation: rate("vllm:generation_tokens_total"),
      prompt: rate("vllm:prompt_tokens_total"),
      running: sumOf(metrics, "vllm:num_requests_running") ?? NaN,
      waiting: sumOf(metrics, "vllm:num_requests_waiting") ?? NaN,
      kvUsage: meanOf(metrics, "vllm:kv_cache_usage_perc"),
      hitRate: growth(oldest, look, "vllm:prefix_cache_hits_total") /
        growth(oldest, look, "vllm:prefix_cache_queries_total"),
    };
    for (const name of Object.keys(HISTOGRAMS)) {
      const [then, now] = [oldest.histograms[name], look.histograms[name]];
      figures[`${name}50`] = now && oldest !== look ? quantile(0.5, then, now) : NaN;
      figures[`${name}95`] = now && oldest !== look ? quantile(0.95, then, now) : NaN;
    }
    return figures;
  }

  #append(time, figures) {
    if (this.length === NUM_KEPT) {
      this.times.copyWithin(0, 1);
      for (const name of SERIES) this.series[name].copyWithin(0, 1);
      this.length -= 1;
    }
    this.times[this.length] = time;
    for (const name of SERIES) this.series[name][this.length] = figures[name];
    this.length += 1;
  }

  #noteEvents(before, look) {
    for (const [name, text] of EVENTS) {
      const grown = sumOf(look.metrics, name) - sumOf(before.metrics, name);
      if (grown > 0) this.#note(look.time, text, grown);
    }
  }

  // A process that was replaced by another one with its title.
  #noteReplaced(samples) {
    for (const { name, pid } of samples?.processes || []) {
      const before = this.#pids.get(name);
      if (before !== undefined && before !== pid) this.#note(this.clock(), `${name} was replaced`, 1);
      this.#pids.set(name, pid);
    }
  }

  #noteHealth(health, time) {
    const state = health ? health.reason || health.status : this.problem;
    if (this.state !== undefined && state !== this.state) this.#note(time, `Now: ${state}`, 1);
    this.state = state;
  }

  #note(time, text, count) {
    this.events.unshift({ time, text, count });
    this.events.length = Math.min(this.events.length, MAX_EVENTS);
  }

  async #ask({ name, path, once, every = 1, takesErrors, read }) {
    if (this.#once[name]) return this.#once[name];
    if (this.#number % every && this.snapshot[name]) return this.snapshot[name];
    if (this.#missing.has(name)) return null;
    try {
      const value = await read(await this.fetcher(path));
      if (once) this.#once[name] = value;
      if (name === "metrics") this.problem = "";
      return value;
    } catch (error) {
      if (error instanceof ServerError && [401, 403, 404].includes(error.status)) {
        this.#missing.add(name);
        if (error.status !== 404) this.refusal = error.message;
      }
      if (name === "metrics") this.problem = error.message;
      return takesErrors && error.body ? error.body : null;
    }
  }
}

// Over all cores, which have caches of one size.
function meanOf(metrics, name) {
  return sumOf(metrics, name) / metrics.get(name)?.length;
}

function growth(before, now, name) {
  return sumOf(now.metrics, name) - sumOf(before.metrics, name);
}

// The reasons that requests wait for, and how many wait for each.
export function waitingReasons(metrics) {
  return byLabel(metrics, "vllm:num_requests_waiting_by_reason", "reason");
}
