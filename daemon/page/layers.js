// SPDX-License-Identifier: Apache-2.0
// The layers of a model in order, coloured by mixer; the one that the pointer or the keyboard is at is
// described below.
import {el} from './dom.js';
import {bytes, number} from './format.js';

const KNOWN = ['attention', 'mla', 'gla', 'mamba', 'mamba1', 'rwkv', 'shortconv', 'hyena'];
export const colourOf = mixer => 'm-' + (KNOWN.includes(mixer) ? mixer : 'other');

/** "gla: gated_deltanet, 6 heads" without the name that stands beside it. */
export const kernelsOf = part => part.kernels.startsWith(part.mixer + ': ') ? part.kernels.slice(part.mixer.length + 2) : part.kernels;

const mixersOf = layer => layer.filter(p => p.mixer);
const othersOf = layer => layer.filter(p => !p.mixer);

function nameOf(part) {
  if (part.mixer) return part.mixer;
  return part.feed_forward === 'experts' ? `${part.experts} experts, ${part.chosen} chosen` : 'feed-forward';
}

function describe(part) {
  const facts = part.mixer ? [kernelsOf(part), `${bytes(part.bytes_per_token)} a token`, `${bytes(part.bytes_per_sequence)} a sequence`]
    : [`${number(part.width)} wide`];
  return el('li', {}, el('span', {class: 'swatch ' + (part.mixer ? colourOf(part.mixer) : 'feed ' + part.feed_forward)}),
    el('strong', {}, nameOf(part)), ` ${facts.join(' · ')} · ${bytes(part.weight_bytes)} of weights`);
}

function tile(name, title, colours, thick) {
  return el('button', {type: 'button', class: 'layer', role: 'option', 'aria-label': title, 'aria-selected': false, tabindex: -1},
    el('span', {class: 'mixers'}, ...colours.map(c => el('span', {class: c}))),
    el('span', {class: 'feed ' + thick}), el('span', {class: 'number'}, name));
}

/** A node with the tiles of all layers, and the details of one. */
export function strip(map) {
  const details = el('div', {class: 'details', role: 'status'});
  const end = (text, n) => [text, n ? `${bytes(n)} of weights` : 'the matrix of the embedding'];
  const items = [
    {tile: tile('in', 'Embedding', ['m-none'], ''), title: 'Embedding', body: [el('li', {}, `${number(map.vocabulary)} tokens, ${number(map.width)} wide · ${end('', map.embedding_bytes)[1]}`)]},
    ...map.layers.map((layer, i) => {
      const title = `Layer ${i}: ${layer.map(nameOf).join(', ')}`;
      const others = othersOf(layer);
      const thick = others.some(p => p.feed_forward === 'experts') ? 'experts' : others.length ? 'dense' : '';
      const colours = mixersOf(layer).map(p => colourOf(p.mixer));
      return {tile: tile(String(i), title, colours.length ? colours : ['m-none'], thick), title: `Layer ${i}`, body: layer.map(describe)};
    }),
    {tile: tile('out', 'Logits', ['m-none'], ''), title: 'Logits', body: [el('li', {}, `${number(map.vocabulary)} tokens · ${end('', map.head_bytes)[1]}`)]},
  ];
  const node = el('div', {class: 'strip', role: 'listbox', 'aria-label': 'Layers in order; move with the arrow keys', 'aria-orientation': 'horizontal'}, ...items.map(i => i.tile));
  let chosen;
  const choose = item => {
    if (chosen) {
      chosen.tile.tabIndex = -1;
      chosen.tile.setAttribute('aria-selected', false);
    }
    chosen = item;
    item.tile.tabIndex = 0;
    item.tile.setAttribute('aria-selected', true);
    details.replaceChildren(el('h4', {}, item.title), el('ul', {}, ...item.body));
  };
  for (const item of items)
    for (const name of ['click', 'focus', 'mouseenter']) item.tile.addEventListener(name, () => choose(item));
  node.addEventListener('keydown', event => {
    const at = items.indexOf(chosen);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: items.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    items[to]?.tile.focus();
  });
  choose(items[1] || items[0]);
  return el('div', {}, node, details);
}

/** Mixers and their colours. */
export function legend(map) {
  const entry = (cls, text) => el('span', {class: 'entry'}, el('span', {class: 'swatch ' + cls}), text);
  const kinds = new Set(map.layers.flat().map(p => p.feed_forward));
  return el('p', {class: 'entries'}, ...map.mixers.map(m => entry(colourOf(m.mixer), `${m.mixer} (${m.layers})`)),
    kinds.has('dense') ? entry('feed dense', 'feed-forward') : null, kinds.has('experts') ? entry('feed experts', 'experts') : null);
}
