// Numbers as texts that fit into a table or a chart. NaN is a dash.

export function grouped(number) {
  return number.toLocaleString("en");
}

export function compact(value) {
  if (Number.isNaN(value)) return "–";
  if (value >= 10_000) return `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k`;
  return value === Math.round(value) || value >= 100 ? String(Math.round(value)) : value.toFixed(value < 10 ? 1 : 0);
}

// Seconds of something that is measured.
export function duration(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  return value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(value < 10 ? 2 : 0)} s`;
}

// Seconds that have passed.
export function span(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86_400 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86_400).toFixed(1)} d`;
}

export function share(value) {
  return Number.isNaN(value) ? "–" : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

export function bytes(number) {
  if (number >= 2 ** 30) return `${(number / 2 ** 30).toFixed(2)} GiB`;
  return `${(number / 2 ** 20).toFixed(0)} MiB`;
}
