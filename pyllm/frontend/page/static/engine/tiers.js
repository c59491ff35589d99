// The memory of KV blocks, one row a tier: the device, the host, and the stores beyond them.

import { bytes, compact, grouped, share } from "./figures.js";
import { byLabel, sumOf } from "./prometheus.js";
import { TablePanel } from "./tables.js";

const COLUMNS = [
  "Tier",
  "#Capacity",
  "#Used",
  "#Filled",
  "#Free runs",
  "#Hits",
  "#Misses",
  "#Evicted",
  "#Loaded",
  "#Saved",
];

// The engine's own tiers: the name, the label of the size, and the metrics.
const OWN = [
  ["device", "num_gpu_blocks", "vllm:kv_cache_usage_perc", "vllm:prefix_cache"],
  ["host", "num_cpu_blocks", "vllm:cpu_cache_usage_perc", "vllm:external_prefix_cache"],
];

export class TiersPanel extends TablePanel {
  constructor() {
    super("KV memory by tier", COLUMNS, ({ oldest, current }) => {
      const rows = tierRows(oldest, current);
      return rows.length > 1 ? rows : null; // A single tier is in other panels.
    });
  }
}

// The texts of each existing tier. Rates are between two looks.
export function tierRows(before, now) {
  const stores = [...new Set((now.metrics.get("pyllm:kv_store_queries_total") || []).map(({ labels }) => labels.tier))];
  return [
    ...OWN.map((tier) => ownRow(now.metrics, ...tier)).filter(Boolean),
    ...stores.map((tier) => storeRow(before, now, tier)),
  ];
}

function ownRow(metrics, tier, label, usage, cache) {
  const caches = metrics.get("vllm:cache_config_info") || [];
  const capacity = caches.reduce((sum, { labels }) => sum + Number(labels[label]), 0);
  if (!capacity) return null;
  // Blocks from a store are external hits, too.
  const loaded = tier === "host" ? sumOf(metrics, "pyllm:loaded_prefix_hits_total") || 0 : 0;
  const hits = sumOf(metrics, `${cache}_hits_total`) - loaded;
  return [
    tier,
    `${grouped(capacity)} blocks`,
    share(sumOf(metrics, usage) / metrics.get(usage)?.length),
    share(meanOfTier(metrics, "pyllm:kv_cache_slot_usage_perc", tier)),
    compact(sumOfTier(metrics, "pyllm:kv_cache_free_runs", tier)),
    `${grouped(hits)} tokens`,
    `${grouped(sumOf(metrics, `${cache}_queries_total`) - loaded - hits)} tokens`,
    "–",
    "–",
    "–",
  ];
}

function storeRow(before, now, tier) {
  const { metrics } = now;
  const seconds = (now.time - before.time) / 1000;
  const count = (name) => sumOfTier(metrics, `pyllm:kv_store_${name}_total`, tier);
  const size = (name) => largestOfTier(metrics, `pyllm:kv_store_${name}`, tier);
  const rate = (name) => {
    const metric = `pyllm:kv_store_${name}_total`;
    const growth = sumOfTier(metrics, metric, tier) - sumOfTier(before.metrics, metric, tier);
    return seconds && growth >= 0 ? `${bytes(growth / seconds)}/s` : "–";
  };
  return [
    tier,
    orDash(size("capacity_bytes"), bytes),
    orDash(size("used_bytes"), bytes),
    share(size("live_perc")),
    compact(size("free_runs")),
    `${grouped(count("hits"))} blocks`,
    `${grouped(count("queries") - count("hits"))} blocks`,
    `${grouped(count("evicted_blocks"))} blocks`,
    rate("loaded_bytes"),
    rate("saved_bytes"),
  ];
}

function sumOfTier(metrics, name, tier) {
  return byLabel(metrics, name, "tier").find(([of]) => of === tier)?.[1] ?? NaN;
}

function meanOfTier(metrics, name, tier) {
  return sumOfTier(metrics, name, tier) / valuesOfTier(metrics, name, tier).length;
}

// Cores that share a store each report the whole of it.
function largestOfTier(metrics, name, tier) {
  const values = valuesOfTier(metrics, name, tier);
  return values.length ? Math.max(...values) : NaN;
}

function valuesOfTier(metrics, name, tier) {
  return (metrics.get(name) || []).filter(({ labels }) => labels.tier === tier).map(({ value }) => value);
}

function orDash(value, text) {
  return Number.isNaN(value) ? "–" : text(value);
}
