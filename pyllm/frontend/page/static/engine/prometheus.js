// Prometheus' text format, and statistics of its counters and histograms between two looks. Knows no metric.

const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?$/;
const LABEL = /(\w+)="((?:\\.|[^"\\])*)"/g;
const ESCAPES = { n: "\n", '"': '"', "\\": "\\" };

// Names and labels of earlier samples: each look has the same ones.
const known = new Map();
const MAX_KNOWN = 5000;

// The samples of each name: objects with `labels` and `value`.
export function parseMetrics(text) {
  const metrics = new Map();
  for (const line of text.split("\n")) {
    const end = line.lastIndexOf(" ");
    if (end < 0 || line.startsWith("#")) continue;
    const sample = sampleOf(line.slice(0, end));
    if (!sample) continue;
    const { name, labels } = sample;
    let samples = metrics.get(name);
    if (!samples) metrics.set(name, samples = []);
    samples.push({ labels, value: numberOf(line.slice(end + 1)) });
  }
  return metrics;
}

function sampleOf(text) {
  let sample = known.get(text);
  if (sample !== undefined) return sample;
  const match = SAMPLE.exec(text);
  sample = match && { name: match[1], labels: labelsOf(match[2] || "") };
  if (known.size >= MAX_KNOWN) known.clear();
  known.set(text, sample);
  return sample;
}

function labelsOf(text) {
  const labels = {};
  for (const [, name, escaped] of text.matchAll(LABEL)) {
    labels[name] = escaped.replace(/\\(.)/g, (_, sign) => ESCAPES[sign] ?? sign);
  }
  return labels;
}

// The sum of a metric over its labels; undefined where there is none.
export function sumOf(metrics, name) {
  return metrics.get(name)?.reduce((sum, { value }) => sum + value, 0);
}

// A metric's values by one of its labels, summed over all others.
export function byLabel(metrics, name, label) {
  const sums = new Map();
  for (const { labels, value } of metrics.get(name) || []) {
    sums.set(labels[label], (sums.get(labels[label]) || 0) + value);
  }
  return [...sums];
}

// A histogram's buckets: bounds in ascending order and cumulative counts; null where there is none.
export function buckets(metrics, name) {
  const samples = metrics.get(`${name}_bucket`);
  if (!samples) return null;
  const sorted = samples.map(({ labels, value }) => [numberOf(labels.le), value]).sort((one, other) =>
    one[0] - other[0]
  );
  return { bounds: sorted.map(([bound]) => bound), counts: sorted.map(([, count]) => count) };
}

// The quantile of the observations between two looks, interpolated in its bucket like Prometheus' histogram_quantile;
// NaN without observations.
export function quantile(share, before, now) {
  const counts = now.counts.map((count, index) => count - (before?.counts[index] ?? 0));
  const total = counts.at(-1);
  if (!(total > 0)) return NaN;
  const rank = share * total;
  const index = counts.findIndex((count) => count >= rank);
  const below = index ? counts[index - 1] : 0;
  const low = index ? now.bounds[index - 1] : 0;
  const high = now.bounds[index];
  if (!Number.isFinite(high)) return low; // Beyond the last bound nothing more is known.
  return low + (high - low) * ((rank - below) / (counts[index] - below));
}

function numberOf(text) {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}
