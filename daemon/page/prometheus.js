// SPDX-License-Identifier: Apache-2.0
// Reads Prometheus' text format (0.0.4).

const LINE = /^([\w:]+)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = {n: '\n', '"': '"', '\\': '\\'};

function labelsOf(text) {
  const labels = {};
  for (const [, name, value] of (text || '').matchAll(LABEL))
    labels[name] = value.replace(/\\(.)/g, (all, c) => ESCAPES[c] ?? all);
  return labels;
}

/** The samples of a text: name -> [{labels, value}]. */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split('\n')) {
    const m = line.startsWith('#') ? null : LINE.exec(line);
    if (!m) continue;
    if (!samples.has(m[1])) samples.set(m[1], []);
    samples.get(m[1]).push({labels: labelsOf(m[2]), value: m[3] === '+Inf' ? Infinity : Number(m[3])});
  }
  return samples;
}

const fits = (labels, wanted) => Object.entries(wanted).every(([name, value]) => labels[name] === value);

/** The sum of the samples with these labels; null if there are none. */
export function value(samples, name, wanted) {
  const found = (samples.get(name) || []).filter(s => fits(s.labels, wanted));
  return found.length ? found.reduce((sum, s) => sum + s.value, 0) : null;
}

/** A histogram: {bounds, counts (of each bucket, one more than bounds), sum}; null if there is none. */
export function histogram(samples, name, wanted) {
  const found = (samples.get(name + '_bucket') || []).filter(s => fits(s.labels, wanted));
  if (!found.length) return null;
  const cumulative = found.map(s => [s.labels.le === '+Inf' ? Infinity : Number(s.labels.le), s.value]).sort((a, b) => a[0] - b[0]);
  return {bounds: cumulative.slice(0, -1).map(([bound]) => bound),
    counts: cumulative.map(([, n], i) => n - (i ? cumulative[i - 1][1] : 0)),
    sum: value(samples, name + '_sum', wanted) || 0};
}

// ---- arithmetic of histograms ----

/** b(x, y) for each bucket and the sum; either may be null. */
function combine(x, y, f) {
  if (!x || !y) return x || y;
  return {bounds: x.bounds, counts: x.counts.map((n, i) => f(n, y.counts[i])), sum: f(x.sum, y.sum)};
}
export const plus = (x, y) => combine(x, y, (a, b) => a + b);
export const minus = (x, y) => combine(x, y, (a, b) => a - b);
export const count = h => h ? h.counts.reduce((a, b) => a + b, 0) : 0;

/** The q-quantile, with values evenly spread in a bucket; NaN if the histogram is empty. */
export function quantile(h, q) {
  let left = q * count(h);
  if (!left) return NaN;
  for (let i = 0; i < h.counts.length; i++) {
    if (left <= h.counts[i] && h.counts[i] > 0) {
      const from = i ? h.bounds[i - 1] : 0, to = h.bounds[i] ?? from;
      return from + (to - from) * left / h.counts[i];
    }
    left -= h.counts[i];
  }
  return h.bounds[h.bounds.length - 1];
}
