// SPDX-License-Identifier: Apache-2.0
// The table of running requests.
import {el} from './dom.js';
import {number, seconds} from './format.js';

const COLUMNS = [['Request'], ['Model'], ['Phase'], ['Age', 'num'], ['First token', 'num'], ['Prompt', 'num'], ['Output', 'num'], ['Tokens/s', 'num']];

function row(r) {
  const decoding = r.first_token_s !== null;
  const rate = decoding && r.age_s > r.first_token_s ? (r.output_tokens - 1) / (r.age_s - r.first_token_s) : NaN;
  const cells = [el('code', {}, r.id), r.model, decoding ? 'decode' : 'waiting or prefill', seconds(r.age_s),
    decoding ? seconds(r.first_token_s) : '–', String(r.prompt_tokens), String(r.output_tokens), number(rate)];
  return el('tr', {}, ...cells.map((c, i) => el('td', {class: COLUMNS[i][1]}, c)));
}

export function table() {
  const body = el('tbody'), note = el('p', {class: 'muted'});
  const node = el('section', {class: 'card requests'}, el('h3', {}, 'Running requests'),
    el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Running requests'},
      el('table', {}, el('thead', {}, el('tr', {}, ...COLUMNS.map(([name, cls]) => el('th', {class: cls, scope: 'col'}, name)))), body)), note);
  return {node, update(list, model) {
    const shown = list.requests.filter(r => !model || r.model === model);
    body.replaceChildren(...shown.map(row));
    note.textContent = !shown.length ? 'None.'
      : list.all > list.requests.length ? `The latest ${list.requests.length} of ${list.all}.` : '';
  }};
}
