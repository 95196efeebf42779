// SPDX-License-Identifier: Apache-2.0
// The memory plan of a model as a picture, and what a sequence of some length takes of it.
import {el, svg} from './dom.js';
import {bytes, number, percent} from './format.js';

const COLOURS = ['k0', 'k1', 'k2', 'k3', 'k4', 'k5', 'k6', 'k7'];
const PLACES = {host: 'memory of the host', device: 'memory of the device', file: 'pages of the file, which the system may drop'};

function bar(parts, all) {
  const w = 1000;
  let at = 0;
  const shapes = parts.map((p, i) => {
    const width = Math.max(w * p.bytes / all, 1.5), x = at;
    at += width;
    return svg('rect', {class: COLOURS[i % 8], x: x.toFixed(1), width: width.toFixed(1), height: 36}, svg('title', {}, `${p.part}: ${bytes(p.bytes)}`));
  });
  return svg('svg', {class: 'memory', viewBox: `0 0 ${w} 36`, preserveAspectRatio: 'none', role: 'img',
    'aria-label': parts.map(p => `${p.part} ${bytes(p.bytes)}`).join(', ')}, ...shapes);
}

function share(label, used, all) {
  if (!all) return null;
  return el('div', {class: 'share'}, el('span', {}, `${bytes(used)} of ${bytes(all)} that ${label}`),
    el('progress', {max: 1, value: used / all, 'aria-label': `Of ${label}`}), el('span', {class: 'num'}, percent(used / all)));
}

/** What a sequence takes, for a length that is chosen. */
function sequence(map) {
  const perToken = map.mixers.reduce((s, m) => s + m.bytes_per_token, 0);
  const perSequence = map.mixers.reduce((s, m) => s + m.bytes_per_sequence, 0);
  const pages = map.memory.find(p => p.part === 'pages');
  const out = el('output', {for: 'tokens'});
  const input = el('input', {id: 'tokens', type: 'range', min: 1, max: map.max_context, step: 1});
  input.value = Math.min(map.max_context, 2048);
  const show = () => {
    const n = Number(input.value);
    const need = map.page_tokens ? Math.ceil(n / map.page_tokens) : 0;
    const fit = need && pages?.n ? Math.min(map.max_sequences, Math.floor(pages.n / need)) : map.max_sequences;
    out.textContent = `A sequence of ${number(n)} tokens takes ${bytes(n * perToken + perSequence)}: ` +
      `${bytes(perSequence)} whatever its length, ${bytes(perToken)} a token. ${number(fit)} such sequences fit.`;
  };
  input.addEventListener('input', show);
  show();
  return el('div', {class: 'sequence'}, el('label', {for: 'tokens'}, 'Tokens'), input, out);
}

export function picture(map) {
  const all = map.memory.reduce((s, p) => s + p.bytes, 0);
  const on = where => map.memory.filter(p => p.where === where).reduce((s, p) => s + p.bytes, 0);
  return el('section', {class: 'card'}, el('h3', {}, `Memory: ${bytes(all)}`), bar(map.memory, all),
    el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Parts of the memory'}, el('table', {},
      el('thead', {}, el('tr', {}, ...[['Part'], ['Bytes', 'num'], ['Number', 'num'], ['Each', 'num'], ['Where']].map(([t, c]) => el('th', {class: c, scope: 'col'}, t)))),
      el('tbody', {}, ...map.memory.map((p, i) => el('tr', {},
        el('td', {}, el('span', {class: 'swatch ' + COLOURS[i % 8]}), p.part), el('td', {class: 'num'}, bytes(p.bytes)),
        el('td', {class: 'num'}, p.n ? number(p.n) : ''), el('td', {class: 'num'}, p.n ? bytes(p.bytes / p.n) : ''),
        el('td', {class: 'muted'}, PLACES[p.where])))))),
    share('this process may use', on('host'), map.host_bytes), share('the device has free', on('device'), map.device_bytes),
    sequence(map));
}
