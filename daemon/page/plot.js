// SPDX-License-Identifier: Apache-2.0
// Small plots in SVG: lines and stacked areas over time, and bars of a distribution. A panel is a card
// with a title, its plot, and a legend with the numbers, which is what screen readers get.
import {el, svg} from './dom.js';

const W = 240, H = 64;

/** The next round number from v on, so that a scale does not jump with each sample. */
function roundUp(v) {
  if (!(v > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(v));
  return power * [1, 2, 5, 10].find(x => x * power >= v * 0.9999);
}

function frame(title, help) {
  const plot = svg('svg', {viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', role: 'img'});
  const legend = el('dl', {class: 'legend'});
  const scale = el('span', {class: 'scale'}), from = el('span'), to = el('span');
  const node = el('section', {class: 'card panel'}, el('h3', {title: help}, title), legend,
    el('div', {class: 'plot'}, plot, scale), el('div', {class: 'axis', 'aria-hidden': true}, from, to));
  return {node, plot, legend, scale, axis(a, b) { from.textContent = a; to.textContent = b; }};
}

function fillLegend(f, title, entries) {
  f.legend.replaceChildren(...entries.map(([name, text, cls]) =>
    el('div', {class: cls}, el('dt', {}, name), el('dd', {}, text))));
  f.plot.setAttribute('aria-label', `${title}: ${entries.map(([name, text]) => `${name} ${text}`).join(', ')}`);
}

const x = (i, n) => n > 1 ? W * i / (n - 1) : W;

/** The corners of a line over values that may be null, as parts without a gap. */
function parts(values, y) {
  const out = [[]];
  values.forEach((v, i) => {
    if (v === null || Number.isNaN(v)) out.push([]);
    else out[out.length - 1].push(`${x(i, values.length).toFixed(1)},${y(v).toFixed(1)}`);
  });
  return out.filter(p => p.length);
}

/** Lines over time. series: [[name, class]]; stacked: as areas, one upon the other; whole: these
 * are the parts of something; most: the scale's end. */
export function timePanel(title, help, series, format, {stacked, whole, most} = {}) {
  const f = frame(title, help);
  let columns = [], at = -1;
  f.axis('2 min ago', 'now');

  const draw = () => {
    const n = columns.length;
    const lines = series.map((s, k) => columns.map(c => c ? c[k] : null));
    const tops = stacked ? lines.map((_, k) => columns.map(c => c ? c.slice(0, k + 1).reduce((a, b) => a + b, 0) : null)) : lines;
    const largest = Math.max(...tops.flat().filter(v => v !== null && !Number.isNaN(v)), 0);
    const top = most ?? (whole ? largest || 1 : roundUp(largest));
    const y = v => H - 1.5 - (H - 4) * Math.min(v / top, 1);
    const shapes = [];
    for (let k = series.length - 1; k >= 0; k--)
      for (const p of parts(tops[k], y)) {
        const first = p[0].split(',')[0], last = p[p.length - 1].split(',')[0];
        if (stacked || k === 0) shapes.push(svg('polygon', {class: `area ${stacked ? 'solid ' : ''}${series[k][1]}`, points: `${first},${H} ${p.join(' ')} ${last},${H}`}));
        shapes.push(svg('polyline', {class: 'line ' + series[k][1], points: p.join(' ')}));
      }
    if (at >= 0) shapes.push(svg('line', {class: 'cursor', x1: x(at, n), x2: x(at, n), y1: 0, y2: H}));
    f.plot.replaceChildren(...shapes);
    f.scale.textContent = most === undefined ? format(top) : '';
    const shown = columns[at >= 0 ? at : n - 1];
    fillLegend(f, title, series.map(([name, cls], k) => [name, shown && shown[k] !== null ? format(shown[k]) : '–', cls]));
  };
  f.plot.addEventListener('pointermove', e => {
    const box = f.plot.getBoundingClientRect();
    at = Math.max(0, Math.min(columns.length - 1, Math.round((e.clientX - box.left) / box.width * (columns.length - 1))));
    draw();
  });
  f.plot.addEventListener('pointerleave', () => { at = -1; draw(); });
  /** columns: [values of each series, or null where nothing is known], oldest first. */
  return {node: f.node, update(c) { columns = c; draw(); }};
}

/** Bars of a distribution: one a bucket, whose widths on the axis are equal. */
export function barPanel(title, help, format) {
  const f = frame(title, help);
  return {node: f.node, update(h, marks, empty) {
    fillLegend(f, title, marks);
    const filled = h ? h.counts.map((n, i) => n > 0 ? i : -1).filter(i => i >= 0) : [];
    if (!filled.length) {
      f.plot.replaceChildren();
      f.scale.textContent = '';
      f.axis(empty, '');
      return;
    }
    const first = Math.max(0, filled[0] - 1), last = Math.min(h.counts.length - 1, filled[filled.length - 1] + 1);
    const n = last - first + 1, top = Math.max(...h.counts), width = W / n;
    f.plot.replaceChildren(...h.counts.slice(first, last + 1).map((v, i) => svg('rect', {class: 'bar c1',
      x: (i * width + 0.08 * width).toFixed(1), width: (0.84 * width).toFixed(1), y: (H - (H - 3) * v / top).toFixed(1), height: ((H - 3) * v / top).toFixed(1)},
    svg('title', {}, `${v} up to ${h.bounds[first + i] === undefined ? '∞' : format(h.bounds[first + i])}`))));
    f.scale.textContent = '';
    f.axis(first ? format(h.bounds[first - 1]) : '0', h.bounds[last] === undefined ? '∞' : format(h.bounds[last]));
  }};
}
