// SPDX-License-Identifier: Apache-2.0
// Live figures, a second apart, while the view is open.
import {$, el} from './dom.js';
import {ApiError, getJson, getText} from './api.js';
import {History, sample} from './figures.js';
import {number, percent, seconds} from './format.js';
import {barPanel, timePanel} from './plot.js';
import {count, quantile} from './prometheus.js';
import {server} from './server.js';
import {table} from './requests.js';

const EVERY_MS = 1000;
const history = new History();
let visible = false, running = false;
let requests;

const rate = name => c => c.now[name] === null ? null : (c.now[name] - c.before[name]) / c.seconds;
/** Mean seconds of a phase in the steps between two samples; null without steps. */
const phase = name => c => {
  const n = count(c.now[name]) - count(c.before[name]);
  return n > 0 ? (c.now[name].sum - c.before[name].sum) / n : null;
};
const share = (part, all) => c => c.past && c.now[all] > c.past[all] ? (c.now[part] - c.past[part]) / (c.now[all] - c.past[all]) : null;
const gauge = name => c => c.now[name];
const rest = (all, ...parts) => c => c.now[all] === null ? null : parts.reduce((left, name) => left - c.now[name], c.now[all]);

// A panel: its title, what it says, its lines [name, class, value of a column], how numbers are written.
const TIMES = [
  ['Requests', 'Requests in the running batch, and in the queue', [['running', 'c1', gauge('running')], ['waiting', 'c3', gauge('waiting')]], number],
  ['Tokens a second', 'Tokens generated, and tokens of prompts with those from the prefix cache',
    [['output', 'c1', rate('output')], ['prompt', 'c2', rate('prompt')], ['of it cached', 'c3', rate('cached')]], number, {wide: true}],
  ['Step time', 'Mean time of a step by phase', [['forward', 'c1', phase('forward')], ['sample', 'c2', phase('sample')], ['host', 'c3', phase('host')]], seconds, {stacked: true, wide: true}],
  ['Pages', 'Pages of the pool: held by requests, by the prefix cache alone, free', [['used', 'c1', gauge('pagesUsed')], ['cached', 'c2', gauge('pagesCached')], ['free', 'rest', rest('pages', 'pagesUsed', 'pagesCached')]], number, {stacked: true, whole: true, needs: 'pages'}],
  ['Slots', 'Slots held by running sequences', [['used', 'c1', gauge('slotsUsed')], ['free', 'rest', rest('slots', 'slotsUsed')]], number, {stacked: true, whole: true, needs: 'slots'}],
  ['Snapshots', 'Saved slots that prompts can resume from', [['held', 'c2', gauge('snapshotsUsed')], ['free', 'rest', rest('snapshots', 'snapshotsUsed')]], number, {stacked: true, whole: true, needs: 'snapshots'}],
  ['Prefix hits', 'Of the tokens looked up in the prefix cache, those found', [['found', 'c2', share('hits', 'queries')]], percent, {most: 1, needs: 'queries'}],
  ['Speculation accepted', 'Of the drafted tokens, those that stayed', [['accepted', 'c4', share('accepted', 'drafted')]], percent, {most: 1, needs: 'drafted', rare: true}],
  ['Preemptions a second', 'Sequences that made way and are computed again later', [['preemptions', 'c4', rate('preemptions')]], number, {needs: 'preemptions'}],
];
const DISTRIBUTIONS = [
  ['Time to first token', 'Arrival to first token', 'ttft'],
  ['Between two tokens', 'Time between two tokens of a request', 'itl'],
];

let panels = [];

function timePanelOf([title, help, lines, format, options = {}]) {
  const p = timePanel(title, help, lines.map(([name, cls]) => [name, cls]), format, options);
  p.node.classList.toggle('two', !!options.wide);
  return {node: p.node, update(columns) {
    const known = columns.filter(c => c);
    const has = known.some(c => options.rare ? c.now[options.needs] > 0 : c.now[options.needs] !== null);
    p.node.hidden = !!options.needs && !has && (known.length > 0 || !!options.rare);
    p.update(columns.map(c => {
      const values = c && lines.map(([, , value]) => value(c));
      return values && values.some(v => v !== null) ? values : null;
    }));
  }};
}

function distributionOf([title, help, name]) {
  const p = barPanel(title, help, seconds);
  return {node: p.node, update(columns, model) {
    const h = history.recent(model, name), known = count(h) > 0;
    p.update(h, [['p50', 0.5], ['p95', 0.95], ['p99', 0.99]].map(([label, q]) => [label, known ? seconds(quantile(h, q)) : '–', 'plainly']),
      'none in the last two minutes');
  }};
}

function draw() {
  const models = history.models(), chosen = $('watch-model').value;
  const options = ['', ...models];
  if (options.join('\n') !== [...$('watch-model').options].map(o => o.value).join('\n'))
    $('watch-model').replaceChildren(...options.map(n => el('option', {value: n, selected: n === chosen}, n || 'all models')));
  const model = $('watch-model').value;
  const columns = history.columns(model);
  for (const p of panels) p.update(columns, model);
}

async function poll() {
  const note = $('watch-note');
  if (server.figures) {
    history.add(sample(await getText('metrics'), performance.now() / 1000));
    draw();
  }
  // without keys the list is everybody's, which is for operators if there is a listener of theirs
  const mayList = server.figures || server.keys;
  requests.node.hidden = !mayList;
  if (mayList && server.admitted) requests.update(await getJson('v1/requests'), $('watch-model').value);
  $('panels').hidden = !server.figures;
  note.textContent = !server.figures ? 'The figures of this server are for its operators: admin.listen says where.'
    : history.latest()?.running === null ? 'Most figures have the names of vLLM, which metrics.vllm_names: false leaves out.' : '';
  note.hidden = !note.textContent;
}

async function run() {
  if (running) return;
  running = true;
  while (visible) {
    try {
      if (server.up && !document.hidden) await poll();
    } catch (e) { // the server is gone, or refuses the key: server.js says so
      if (!(e instanceof ApiError)) throw e;
    }
    await new Promise(done => setTimeout(done, EVERY_MS));
  }
  running = false;
}

export function setVisible(on) {
  visible = on;
  if (on) run();
}

export function init() {
  panels = [...TIMES.slice(0, 2).map(timePanelOf), ...DISTRIBUTIONS.map(distributionOf), ...TIMES.slice(2).map(timePanelOf)];
  requests = table();
  $('watch').append(el('div', {class: 'wide'},
    el('div', {class: 'row'}, el('h2', {}, 'The last two minutes'), el('span', {class: 'muted'}, ''),
      el('label', {class: 'pick'}, el('span', {class: 'hidden'}, 'Figures of'), el('select', {id: 'watch-model', onchange: draw}, el('option', {value: ''}, 'all models')))),
    el('p', {id: 'watch-note', class: 'card', hidden: true}),
    el('div', {id: 'panels', class: 'panels'}, ...panels.map(p => p.node)),
    requests.node));
}
