// SPDX-License-Identifier: Apache-2.0
// The map of a model, and while it loads, how far it is.
import {$, el} from './dom.js';
import {ApiError, getJson} from './api.js';
import {bytes, number, percent, seconds} from './format.js';
import {colourOf, kernelsOf, legend, strip} from './layers.js';
import {picture} from './memory.js';
import {model, onChange, server} from './server.js';

const EVERY_MS = 500, EVERY_READY_MS = 4000;
let visible = false, running = false;
let shown = '';       // the map that is drawn, as text
let speed = null;     // {id, t, bytes, rate} of loading
let wake = () => {};

function facts(map) {
  const list = [['Family', map.family], ['Device', map.device], ['Kernels', map.isa], ['Threads', map.threads || null],
    ['Weights', map.weights], ['Activations', map.activations], ['Context', `${number(map.max_context)} tokens`],
    ['Sequences', `${number(map.max_sequences)} at a time`], ['Layers', map.layers?.length], ['Width', map.width && number(map.width)],
    ['Vocabulary', map.vocabulary && number(map.vocabulary)], ['Same bits in any batch', map.deterministic ? 'yes' : 'no'],
    ['Chat', map.chat ? 'yes' : map.chat_error]];
  return el('dl', {class: 'facts'}, ...list.filter(([, v]) => v !== undefined && v !== null && v !== '')
    .map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, String(v)))));
}

function mixers(map) {
  const kernels = name => [...new Set(map.layers.flat().filter(p => p.mixer === name).map(kernelsOf))];
  const heads = [['Mixer'], ['Layers', 'num'], ['Kernels'], ['A token', 'num'], ['A sequence', 'num'], ['A snapshot', 'num']];
  return el('section', {class: 'card'}, el('h3', {}, 'Mixers'),
    el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Mixers'}, el('table', {},
      el('thead', {}, el('tr', {}, ...heads.map(([t, c]) => el('th', {class: c, scope: 'col'}, t)))),
      el('tbody', {}, ...map.mixers.map(m => el('tr', {}, el('td', {}, el('span', {class: 'swatch ' + colourOf(m.mixer)}), el('strong', {}, m.mixer)),
        el('td', {class: 'num'}, String(m.layers)), el('td', {class: 'muted'}, ...kernels(m.mixer).map(k => el('div', {}, k))),
        el('td', {class: 'num'}, bytes(m.bytes_per_token)), el('td', {class: 'num'}, bytes(m.bytes_per_sequence)),
        el('td', {class: 'num'}, bytes(m.bytes_per_snapshot))))))));
}

/** Bytes a second, smoothed; NaN until two looks differ in time. */
function measure(map) {
  const t = performance.now() / 1000;
  if (speed?.id !== map.id || map.loaded_bytes < speed.bytes) speed = {id: map.id, t, bytes: map.loaded_bytes, rate: NaN};
  else if (t > speed.t) {
    const now = (map.loaded_bytes - speed.bytes) / (t - speed.t);
    speed = {id: map.id, t, bytes: map.loaded_bytes, rate: Number.isNaN(speed.rate) ? now : 0.6 * speed.rate + 0.4 * now};
  }
  return speed.rate;
}

function loading(map) {
  const rate = measure(map), left = map.load_bytes - map.loaded_bytes;
  const text = [`${percent(map.load_bytes ? map.loaded_bytes / map.load_bytes : 0)}, ${bytes(map.loaded_bytes)} of ${bytes(map.load_bytes)}`,
    Number.isFinite(rate) ? `${(rate / 1e9).toFixed(2)} GB/s` : null, rate > 0 ? `${seconds(left / rate)} left` : null];
  return el('section', {class: 'card loading'}, el('h3', {}, `${map.id} is loading`),
    el('progress', {max: 1, value: map.load_bytes ? map.loaded_bytes / map.load_bytes : 0, 'aria-label': 'Loading'}),
    el('p', {}, text.filter(x => x).join(', ')));
}

function draw(map) {
  const text = JSON.stringify(map);
  if (text === shown && map.state !== 'loading') return;
  shown = text;
  if (map.state === 'loading') return $('map').replaceChildren(loading(map));
  if (map.state === 'failed')
    return $('map').replaceChildren(el('section', {class: 'card'}, el('h3', {}, `${map.id} could not be loaded`), el('p', {class: 'note fault'}, map.failure)));
  const title = map.id === map.root ? map.id : `${map.id}, an alias of ${map.root}`;
  const parts = [el('section', {class: 'card'}, el('h2', {}, title, ' ', map.state === 'ready' ? '' : el('span', {class: 'pill warn'}, map.state)), facts(map))];
  if (map.layers)
    parts.push(el('section', {class: 'card'}, el('h3', {}, 'Layers'), legend(map), strip(map)), mixers(map), picture(map));
  $('map').replaceChildren(...parts);
}

async function look() {
  if (!server.up || !server.admitted || !model()) return EVERY_MS;
  try {
    const map = await getJson(`v1/models/${encodeURIComponent(model())}/map`);
    if (map.id === model()) draw(map);
    return map.state === 'loading' ? EVERY_MS : EVERY_READY_MS;
  } catch (e) {
    if (!(e instanceof ApiError)) throw e;
    if (e.status !== 401 && e.status !== 0) {
      shown = '';
      $('map').replaceChildren(el('p', {class: 'card note fault'}, e.message));
    }
    return EVERY_READY_MS;
  }
}

async function run() {
  if (running) return;
  running = true;
  while (visible) {
    const ms = document.hidden ? EVERY_READY_MS : await look();
    await new Promise(done => { wake = done; setTimeout(done, ms); });
  }
  running = false;
}

export function setVisible(on) {
  visible = on;
  if (on) run();
}

export function init() {
  $('understand').append(el('div', {class: 'wide', id: 'map'}));
  onChange(() => wake());
}
